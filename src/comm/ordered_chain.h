// The exact reduction's arithmetic: sums over ranks whose order is part of the contract (docs/numerics.md).
#pragma once

#include <cstdint>
#include <span>

#include "tessera/communicator.h"
#include "tessera/dtype.h"

namespace tessera::comm {

// result[i] = ((start + c_0[i]) + c_1[i]) + ... in fp32, in the order of `contributions`, each of `numel`
// elements of `type`. The start is result[i] if `accumulate`, else the chain begins with c_0[i] itself. Any
// one contribution may be `result` itself where it is fp32 and not `accumulate`. The pointers may be changed.
// `squares` as of kernels::ordered_chain.
void ordered_chain(std::span<const void*> contributions, DType type, std::int64_t numel, bool accumulate,
                   float* result, const Squares& squares = {});

// The same in float64, without a start.
void ordered_chain(std::span<const void*> contributions, std::int64_t numel, double* result);

// Either, without a start.
inline void sum_into(std::span<const void*> contributions, std::int64_t numel, float* result) {
  ordered_chain(contributions, DType::fp32, numel, false, result);
}
inline void sum_into(std::span<const void*> contributions, std::int64_t numel, double* result) {
  ordered_chain(contributions, numel, result);
}

// result = the contributions, added as ReduceScatter::balanced says. Any one of them may be `result` itself
// where it is fp32.
void balanced_sum(std::span<const void*> contributions, DType type, std::int64_t numel, float* result);

// What the call makes of `numel` elements of its contributions: a part of this rank's shard.
void reduce(const ReduceScatter& call, std::span<const void*> contributions, std::int64_t numel,
            float* result, const Squares& squares = {});

// Bytes that peers contribute to this rank's shard.
std::int64_t contributed_bytes(const ReduceScatter& call, int rank);

// ReduceScatter::squares, where they are asked for, of a shard on the host that is complete.
void take_squares(const ReduceScatter& call);

}  // namespace tessera::comm
