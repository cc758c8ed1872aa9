// What a thread works on in attention over cached keys and values (cached_attention.cpp).
#pragma once

#include <cstdint>

namespace tessera::kernels {

// What a task works on. Rows of keys and values are `channels` apart.
struct CachedTask {
  const void* queries = nullptr;  // of the first row, from the group's first head on
  const void *keys = nullptr, *values = nullptr;
  std::int64_t row_numel = 0;  // from one row of queries to the next
  std::int64_t rows = 0;
  std::int64_t group = 1;
  std::int64_t channels = 0, padded = 0;
  std::int64_t first = 0, last = 0;  // the block's places
  std::int64_t visible = 0;          // places that the first row sees; each next one sees one more
  float* partial = nullptr;          // what is kept of the first row's first head
  std::int64_t partial_stride = 0;   // from one row to the next; heads are kept_floats() apart
};

// Floats that are kept for each query: the weighted values, then maximum and sum.
constexpr std::int64_t kept_floats(std::int64_t padded) { return padded + 16; }

}  // namespace tessera::kernels
