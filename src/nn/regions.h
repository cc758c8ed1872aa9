// Places in memory by their offsets in bytes.
#pragma once

#include <cstdint>

#include "tessera/layout.h"

namespace tessera::nn {

constexpr std::int64_t align_up(std::int64_t bytes) { return round_up(bytes, kAlignmentBytes); }

template <class T = void>
T* at(void* base, std::int64_t offset) {
  return static_cast<T*>(static_cast<void*>(static_cast<char*>(base) + offset));
}

template <class T = void>
const T* at(const void* base, std::int64_t offset) {
  return static_cast<const T*>(static_cast<const void*>(static_cast<const char*>(base) + offset));
}

}  // namespace tessera::nn
