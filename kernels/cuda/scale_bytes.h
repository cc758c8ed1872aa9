// Scales as GPUs of compute capability 10 and later take them: the exponents of powers of two, a byte for
// each 32 elements of a row (UE8M0). A tile of 128 columns has four equal ones, so that the numbers stay what
// they are.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/quantize.h"

namespace tessera::kernels::cuda {

// cuBLASLt wants the bytes of 128 rows and 128 columns together, in 128 words of four bytes.
constexpr std::int64_t scale_words(const QuantizeShape& s) {
  return ceil_div(s.rows, kFp8Tile) * s.tiles_across() * kFp8Tile;
}
TESSERA_HOST_DEVICE constexpr std::int64_t scale_word_at(const QuantizeShape& s, std::int64_t row,
                                                         std::int64_t column) {
  const std::int64_t square = row / kFp8Tile * s.tiles_across() + column / kFp8Tile;
  const std::int64_t in = row % kFp8Tile;
  return square * kFp8Tile + in % 32 * 4 + in / 32;
}

// All words, from scales as quantize() writes them; rows that are not there have 0.
void write_scale_bytes(const ComputeContext& context, const QuantizeShape& shape, const float* scales,
                       std::uint32_t* words);

}  // namespace tessera::kernels::cuda
