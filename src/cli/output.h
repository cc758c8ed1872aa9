// What the tool writes for people and for programs: numbers with units, escaped text, files that appear
// whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace tessera::cli {

std::string mib(std::int64_t bytes);         // "12.3 MiB"
std::string duration(double seconds);        // "0:07", "1:02:03"
std::string count(std::int64_t value);       // "10,745,344"
std::string escaped(std::string_view text);  // bytes that are not printable UTF-8, newline or tab: \x1b

// A file that is there whole or not at all: written beside its place and renamed by commit(). What is no
// regular file, /dev/stdout say, is written in place.
class OutputFile {
 public:
  OutputFile() = default;  // writes nowhere
  // Creates the partial file, so that a path that cannot be written is known before the work.
  // EnvironmentError.
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile() { discard(); }
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;

  explicit operator bool() const { return !path_.empty(); }
  std::ostream& stream() { return out_; }
  void commit();
  void discard() noexcept;

 private:
  std::filesystem::path path_, partial_;
  std::ofstream out_;
};

}  // namespace tessera::cli
