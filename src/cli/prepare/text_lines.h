// A file of text, line by line or as a whole, decompressed where it is compressed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "src/cli/prepare/byte_stream.h"

namespace tessera::cli {

class TextLines {
 public:
  // `command` begins messages. Throws UsageError for what begins as another format does, Parquet for one, and
  // EnvironmentError as ByteStream does.
  TextLines(const std::string& path, const char* command);

  // The next line that has more than blanks, without its end; nothing at the end. Valid until the next call.
  std::optional<std::string_view> next();
  // What is left of the file.
  std::string rest();
  std::int64_t number() const { return number_; }                // of the line that next() gave, from 1
  std::int64_t consumed() const { return stream_->consumed(); }  // bytes of the file that were read so far
  // Throws UsageError: "command: line 3 of 'path' <what>".
  [[noreturn]] void refuse(std::string_view what) const;

 private:
  bool fill();
  std::optional<std::string_view> next_line();

  std::string path_;
  const char* command_;
  std::unique_ptr<ByteStream> stream_;
  std::string buffer_;  // what was read and not given yet, from `at_` on
  std::size_t at_ = 0;
  std::int64_t number_ = 0;
};

}  // namespace tessera::cli
