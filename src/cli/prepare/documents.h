// Documents, one after the other, of a file of text or of JSON lines.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera::cli {

// A file of JSON lines is one whose name ends in .jsonl or .ndjson, before .gz or .zst. Any other is text,
// and one document.
class Documents {
 public:
  // `field` is the member of a line's object that has the text; `command` begins messages.
  Documents(const std::string& path, std::string field, const char* command = "data prepare");
  ~Documents();
  Documents(const Documents&) = delete;
  Documents& operator=(const Documents&) = delete;

  // The next document's text; nothing at the end. Empty lines are left out, and so are empty documents.
  // Throws UsageError naming file and line for a line that is no object, or whose field is missing or no
  // string, and for what begins as another format does, Parquet for one; EnvironmentError as TextLines does.
  std::optional<std::string> next();
  // Bytes of the file that were read so far.
  std::int64_t consumed() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::cli
