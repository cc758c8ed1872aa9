// From the squares of blocks to an exact sum, where no vector helps.
#pragma once

#include <cstdint>

#include "kernels/exact_sum.h"
#include "kernels/float_types.h"

namespace tessera::kernels::cpu {

// Adds sums[b], the squares of block b of `count` elements; the last block may be shorter. Elements are read
// only where the sum of their block is not finite.
void add_block_squares(const double* sums, const float* elements, std::int64_t count, const Squares& squares);
void add_block_squares(const double* sums, const Bf16* elements, std::int64_t count, const Squares& squares);
void add_block_squares(const double* sums, const Fp16* elements, std::int64_t count, const Squares& squares);

}  // namespace tessera::kernels::cpu
