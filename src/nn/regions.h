// Divides a block of memory into regions. The memory plan, forward and backward use the same offsets, so that
// the counted bytes are the used ones.
#pragma once

#include <cstdint>

#include "tessera/layout.h"

namespace tessera::nn {

constexpr std::int64_t align_up(std::int64_t bytes) { return round_up(bytes, kAlignmentBytes); }

// Hands out consecutive offsets, each aligned; bytes() is the end of the last region, aligned as well.
class Regions {
 public:
  std::int64_t take(std::int64_t bytes) {
    const std::int64_t offset = bytes_;
    bytes_ += align_up(bytes);
    return offset;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_ = 0;
};

template <class T = void>
T* at(void* base, std::int64_t offset) {
  return static_cast<T*>(static_cast<void*>(static_cast<char*>(base) + offset));
}

template <class T = void>
const T* at(const void* base, std::int64_t offset) {
  return static_cast<const T*>(static_cast<const void*>(static_cast<const char*>(base) + offset));
}

}  // namespace tessera::nn
