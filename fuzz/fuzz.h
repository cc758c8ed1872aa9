// What the fuzzers share: an input as a file, and a check that ends the program.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace tessera::fuzz {

// A property that must hold whatever the input is; libFuzzer keeps an input that breaks one.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

// A file in memory with these bytes, under a path while it lives.
class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t bytes)
      : MemoryFile(data, bytes, static_cast<std::int64_t>(bytes)) {}
  // The same, of `file_bytes` in all; what follows is zeros.
  MemoryFile(const std::uint8_t* data, std::size_t bytes, std::int64_t file_bytes)
      : file_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    require(file_ >= 0 && ::write(file_, data, bytes) == static_cast<ssize_t>(bytes) &&
                ::ftruncate(file_, file_bytes) == 0,
            "no memory file");
  }
  ~MemoryFile() { ::close(file_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

}  // namespace tessera::fuzz
