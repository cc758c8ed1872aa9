// Sums whose order is part of the contract. The same bits for any thread count and instruction set.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/context.h"
#include "kernels/host_device.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// accumulator[i] = ((start + c_0[i]) + c_1[i]) + ... in fp32, strictly in the order of `contributions` (rank
// order), each of `type` and `numel` elements. The start is accumulator[i] for beta 1; for beta 0 the chain
// starts from c_0[i] itself. One pass over memory. 1 to 1024 contributions, otherwise UsageError. With
// beta 0 one of the first kFirstSweep contributions, if fp32, may be `accumulator` itself.
inline constexpr int kFirstSweep = 8;
void ordered_chain(const ComputeContext& context, std::int64_t numel, DType type,
                   std::span<const void* const> contributions, float beta, float* accumulator);

// accumulator = input + beta * accumulator: the chain with one contribution.
void accumulate(const ComputeContext& context, std::int64_t numel, DType type, const void* input, float beta,
                float* accumulator);

struct SumOfSquares {
  double sum = 0.0;                   // NaN or infinite where an element is
  std::int64_t first_nonfinite = -1;  // index of the first element that is NaN or infinite; -1: none
};

// On the CPU with one thread none is needed.
std::int64_t sum_of_squares_workspace_bytes(std::int64_t numel);

// Squares are summed by blocks of so many elements, and the blocks' sums in so many lanes.
inline constexpr std::int64_t kSumBlock = 1024;
inline constexpr int kSumLanes = 32;        // of a block
inline constexpr int kBlockSumLanes = 256;  // of the blocks
TESSERA_HOST_DEVICE constexpr std::int64_t sum_blocks(std::int64_t numel) {
  return (numel + kSumBlock - 1) / kSumBlock;
}

// The sum of lanes, those half their number apart first; overwrites them.
template <int kCount>
double add_lanes(double (&lane)[kCount]) {
  for (int width = kCount / 2; width > 0; width /= 2)
    for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
  return lane[0];
}

// Squares in float64 over blocks of 1024 elements counted from `input`: in a block 32 lanes (element i in
// lane i % 32), over the blocks 256 (block b in lane b % 256), each in order, added up by add_lanes. fp32,
// bf16 or fp16. `result`, in memory of the device, is overwritten.
void sum_of_squares(const ComputeContext& context, std::int64_t numel, DType type, const void* input,
                    SumOfSquares* result);

}  // namespace tessera::kernels
