// Sums whose order is part of the contract. The same bits for any thread count and instruction set.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/context.h"
#include "kernels/host_device.h"
#include "tessera/dtype.h"
#include "tessera/reduction.h"

namespace tessera::kernels {

// accumulator[i] = ((start + c_0[i]) + c_1[i]) + ... in fp32, strictly in the order of `contributions` (rank
// order), each of `type` and `numel` elements. The start is accumulator[i] for beta 1; for beta 0 the chain
// starts from c_0[i] itself. One pass over memory. 1 to 1024 contributions, otherwise UsageError. With
// beta 0 one of the first kFirstSweep contributions, if fp32, may be `accumulator` itself. Where
// `squares` is given it becomes what block_squares() makes of the accumulator.
inline constexpr int kFirstSweep = 8;
void ordered_chain(const ComputeContext& context, std::int64_t numel, DType type,
                   std::span<const void* const> contributions, float beta, float* accumulator,
                   double* squares = nullptr);

// accumulator = input + beta * accumulator: the chain with one contribution.
void accumulate(const ComputeContext& context, std::int64_t numel, DType type, const void* input, float beta,
                float* accumulator);

struct SumOfSquares {
  double sum = 0.0;                   // NaN or infinite where an element is
  std::int64_t first_nonfinite = -1;  // index of the first element that is NaN or infinite; -1: none
};

// Lanes in which the squares of a block are summed, and the blocks' sums.
inline constexpr int kSquareLanes = 32;
inline constexpr int kBlockLanes = 256;
// As tessera::square_blocks(), on the device, too.
TESSERA_HOST_DEVICE constexpr std::int64_t square_blocks(std::int64_t numel) {
  return (numel + kSquareBlock - 1) / kSquareBlock;
}
static_assert(square_blocks(10 * kSquareBlock + 1) == tessera::square_blocks(10 * kSquareBlock + 1));

// The sum of lanes, those half their number apart first; overwrites them.
template <int kCount>
double add_lanes(double (&lane)[kCount]) {
  for (int width = kCount / 2; width > 0; width /= 2)
    for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
  return lane[0];
}

// sums[b] = the squares of block b of kSquareBlock elements, counted from `input`, in float64: element i of
// it in lane i % 32, each lane in order, then add_lanes. fp32, bf16 or fp16. square_blocks(numel) sums.
void block_squares(const ComputeContext& context, std::int64_t numel, DType type, const void* input,
                   double* sums);

// What block_squares() made of `input`, added up: block b in lane b % 256, each lane in order, then
// add_lanes. `input` is read only where a block's sum is not finite. `result`, in memory of the device, is
// overwritten.
void add_block_squares(const ComputeContext& context, std::int64_t numel, DType type, const void* input,
                       const double* sums, SumOfSquares* result);

// Both, by way of the workspace.
void sum_of_squares(const ComputeContext& context, std::int64_t numel, DType type, const void* input,
                    SumOfSquares* result);
std::int64_t sum_of_squares_workspace_bytes(std::int64_t numel);

}  // namespace tessera::kernels
