// Documents, one after the other, of a file of text or of JSON lines.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera::cli {

// The members of a JSON line's object that have its text: one, or a prompt and the answer to it.
struct DocumentFields {
  std::string text = "text";
  std::string prompt = {}, answer = {};  // empty: `text`
  bool prompted() const { return !prompt.empty(); }
};

struct Document {
  std::string prompt;  // empty unless the fields are a prompt and an answer
  std::string text;    // all of it, or the answer
  std::int64_t bytes() const { return static_cast<std::int64_t>(prompt.size() + text.size()); }
};

// A file of JSON lines is one whose name ends in .jsonl or .ndjson, before .gz or .zst. Any other is text,
// and one document.
class Documents {
 public:
  // `command` begins messages. Throws UsageError for a prompt and an answer of a file that is not of JSON
  // lines.
  Documents(const std::string& path, DocumentFields fields, const char* command = "data prepare");
  ~Documents();
  Documents(const Documents&) = delete;
  Documents& operator=(const Documents&) = delete;

  // The next document; nothing at the end. Empty lines are left out, and so are empty documents.
  // Throws UsageError naming file and line for a line that is no object, or of which a field is missing or no
  // string, and for what begins as another format does, Parquet for one; EnvironmentError as TextLines does.
  std::optional<Document> next();
  // Bytes of the file that were read so far.
  std::int64_t consumed() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::cli
