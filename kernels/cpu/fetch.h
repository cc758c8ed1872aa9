// Prefetches memory ahead of its use. The hardware prefetches streams by itself, but stops at every page.
#pragma once

#include <cstdint>

#include "hwy/cache_control.h"

namespace tessera::kernels {

// The distance from what is read to what is prefetched, for loops that compute little.
constexpr std::int64_t kAheadBytes = 2048;

// Prefetches the cache lines of the 64 elements from i on, each once.
template <class Element>
HWY_INLINE void fetch_lines(const Element* stream, std::int64_t i) {
  constexpr std::int64_t kLine = 64 / sizeof(Element);
#pragma GCC unroll 4
  for (std::int64_t line = 0; line < 64; line += kLine) hwy::Prefetch(stream + i + line);
}

}  // namespace tessera::kernels
