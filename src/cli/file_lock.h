// A file that one run has to itself: an flock() on it, which ends with the process that holds it.
#pragma once

#include <string>

namespace tessera::cli {

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
