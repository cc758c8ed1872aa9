// Sums whose order is part of the contract. The same bits for any thread count and instruction set.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "kernels/context.h"
#include "tessera/dtype.h"
#include "tessera/exact_sum.h"

namespace tessera::kernels {

// accumulator[i] = ((start + c_0[i]) + c_1[i]) + ... in fp32, strictly in the order of `contributions` (rank
// order), each of `type` and `numel` elements. The start is accumulator[i] for beta 1; for beta 0 the chain
// starts from c_0[i] itself. One pass over memory. 1 to 1024 contributions, otherwise UsageError. With
// beta 0 one of the first kFirstSweep contributions, if fp32, may be `accumulator` itself. Where a sum for
// `squares` is given, those of the accumulator are added to it as by sum_of_squares().
inline constexpr int kFirstSweep = 8;
void ordered_chain(const ComputeContext& context, std::int64_t numel, DType type,
                   std::span<const void* const> contributions, float beta, float* accumulator,
                   const Squares& squares = {});

// result = the contributions, each of `type` and `numel` elements, added in fp32 as a balanced tree: of n,
// the first half, which is the largest power of two below n, and the rest are each added so, and then the
// two. A power of two of neighbours may therefore be added beforehand, for the same bits. Up to three are the
// ordered chain. One of the first two may be `result` itself, if fp32; nothing else may overlap. `scratch`
// holds balanced_scratch(n) · numel elements. UsageError for no contribution.
void balanced_sum(const ComputeContext& context, std::int64_t numel, DType type,
                  std::span<const void* const> contributions, float* result, float* scratch);
constexpr int balanced_scratch(int contributions) {
  return contributions <= 3 ? 0 : std::bit_width(static_cast<unsigned>(contributions - 1)) - 1;
}

// accumulator = input + beta * accumulator: the chain with one contribution.
void accumulate(const ComputeContext& context, std::int64_t numel, DType type, const void* input, float beta,
                float* accumulator);

// Adds the squares of all elements: fp32, bf16 or fp16.
void sum_of_squares(const ComputeContext& context, std::int64_t numel, DType type, const void* input,
                    const Squares& squares);

}  // namespace tessera::kernels
