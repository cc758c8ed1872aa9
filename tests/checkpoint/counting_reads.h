// How many bytes of checkpoints and safetensors each rank reads.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "src/checkpoint/file.h"

namespace tessera::testing {

// What each thread, which is a rank, has read while a CountingReads lives.
inline thread_local std::int64_t bytes_read = 0;

inline ssize_t counted_pread(int file, void* to, std::size_t bytes, off_t offset) {
  const ssize_t done = ::pread(file, to, bytes, offset);
  bytes_read += std::max<ssize_t>(done, 0);
  return done;
}

struct CountingReads {
  CountingReads() { checkpoint::file_pread = &counted_pread; }
  ~CountingReads() { checkpoint::file_pread = ::pread; }
  CountingReads(const CountingReads&) = delete;
  CountingReads& operator=(const CountingReads&) = delete;
};

}  // namespace tessera::testing
