// Single files of a run: what is no path to write to, a file's text, and a file that one run has to itself.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace tessera::cli {

// Why it is none; empty where it is one. "-" is what other tools take for the standard output, and would
// become a file.
std::string why_no_output(const std::string& path);

// Nothing, and errno set, where it cannot be read.
std::optional<std::string> read_text(const std::filesystem::path& file);

class FileLock {
 public:
  FileLock() = default;  // of no file
  // Of a file that is there. EnvironmentError where another holds it, or it cannot be opened; a file system
  // without locks has none to give, and the file is taken all the same. `key` is what named the path.
  FileLock(const char* key, const std::string& path);
  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;

 private:
  int file_ = -1;
};

}  // namespace tessera::cli
