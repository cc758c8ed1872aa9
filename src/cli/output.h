// Output for people and for programs: numbers with units, escaped text, files that appear completely or not
// at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>

#include "tessera/error.h"

namespace tessera::cli {

std::string mib(std::int64_t bytes);         // "12.3 MiB"
std::string duration(double seconds);        // "0:07", "1:02:03"
std::string loss_text(double loss);          // "5.5452"; "nan" for a NaN of either sign
std::string count(std::int64_t value);       // "10,745,344"
std::string escaped(std::string_view text);  // escapes as \x1b all bytes but printable UTF-8, newline and tab

// Checks that files can be made in the folder or, if it does not exist yet, that it can be made. So a run
// that could not save after hours is refused at the start. Throws EnvironmentError naming `key`.
void check_can_write(const char* key, const std::filesystem::path& folder);

// Whether `path` is where the standard output goes, such as /dev/stdout. The tool writes to such a path
// through the standard output, because a file that is opened twice has two write positions.
bool is_standard_output(const std::filesystem::path& path);
// Writes `text` after everything printed so far. False, with errno set, if it cannot be written.
bool write_to_standard_output(std::string_view text);

// A file that appears completely or not at all. It is written in the same folder and renamed by commit();
// `path` may be a link to its place. A path that is not a regular file, such as a pipe, is written directly.
class OutputFile {
 public:
  OutputFile();  // writes nowhere
  // Creates the partial file, so that a path that cannot be written is noticed before the work. With an empty
  // path it writes nowhere. Throws EnvironmentError, here and later, naming `argument`, as which the path was
  // given.
  OutputFile(std::string_view argument, const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;

  explicit operator bool() const { return !path_.empty(); }
  std::ostream& stream();
  void commit();
  void discard() noexcept;

 private:
  class Stream;
  EnvironmentError cannot_write(std::string_view reason) const;

  std::string argument_;
  std::filesystem::path path_;              // as it was given
  std::filesystem::path target_, partial_;  // empty: the standard output
  std::unique_ptr<Stream> out_;
};

}  // namespace tessera::cli
