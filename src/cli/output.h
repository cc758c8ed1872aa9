// What the tool writes for people and for programs: numbers with units, escaped text, files that appear
// whole.
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
std::string loss_text(double loss);          // "5.5452"; "nan" without the sign that it happens to have
std::string count(std::int64_t value);       // "10,745,344"
std::string escaped(std::string_view text);  // bytes that are not printable UTF-8, newline or tab: \x1b

// That files can be made in the folder, or where it is to be made: what is saved after hours is refused
// before. EnvironmentError naming `key`.
void check_can_write(const char* key, const std::filesystem::path& folder);

// Whether it is where the standard output goes, /dev/stdout say: what the tool writes there goes through
// that, as a file that is opened twice has two places to write at.
bool is_standard_output(const std::filesystem::path& path);
// Behind all that was printed. False, and errno set, where it cannot be written.
bool write_to_standard_output(std::string_view text);

// A file that is there whole or not at all: written beside its place, which a link may lead to, and renamed
// by commit(). What is no regular file, a pipe say, is written in place.
class OutputFile {
 public:
  OutputFile();  // writes nowhere
  // Creates the partial file, so that a path that cannot be written is known before the work; writes nowhere
  // where the path is empty. EnvironmentError naming `argument`, what the path was given as, here and later.
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
