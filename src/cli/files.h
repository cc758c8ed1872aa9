// Single files of a run: which paths cannot be written to, a file's text, and a lock for files that one run
// must have for itself.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace tessera::cli {

// Why `path` is not a path to write to; empty if it is one. "-" is refused: other tools take it for the
// standard output, and here it would become a file.
std::string why_no_output(const std::string& path);

// The file's text. Nothing, with errno set, if it cannot be read.
std::optional<std::string> read_text(const std::filesystem::path& file);

class FileLock {
 public:
  FileLock() = default;  // locks no file
  // Locks an existing file. Throws EnvironmentError if another run holds it, or it cannot be opened. On a
  // file system without locks the file is used without one. `key` is the key that named the path, for
  // messages.
  FileLock(const char* key, const std::string& path);
  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;

 private:
  int file_ = -1;
};

}  // namespace tessera::cli
