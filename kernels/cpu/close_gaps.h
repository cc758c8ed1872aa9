// Moves rows together, since oneDNN takes a dense matrix far better.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/parallel.h"

namespace tessera::kernels {

// Each of the rows lies in the first half of 2 * row_bytes of `memory`. Row r goes from 2r to r, so rows
// [a, 2a) land where earlier rows were and can move side by side.
inline void close_gaps(int threads, std::int64_t rows, std::int64_t row_bytes, void* memory) {
  char* const at = static_cast<char*>(memory);
  for (std::int64_t first = 1; first < rows; first *= 2)
    parallel_ranges(
        threads, std::min(first, rows - first), 4, [&](std::int64_t begin, std::int64_t end, int) {
          for (std::int64_t row = first + begin; row < first + end; ++row)
            std::memcpy(at + row * row_bytes, at + 2 * row * row_bytes, static_cast<std::size_t>(row_bytes));
        });
}

}  // namespace tessera::kernels
