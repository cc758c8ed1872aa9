#include "src/comm/ordered_chain.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/reduce.h"

namespace tessera::comm {
namespace {

// A block of sums stays in the first-level cache while the contributions stream by.
constexpr std::int64_t kBlock = 1024;
static_assert(kBlock % kSquareBlock == 0);

// The kernel writes the result before it has read late contributions: a copy of each block stands in for
// `own`, the one that is the result.
void chain_in_place(std::span<const void*> contributions, const void*& own, std::int64_t numel, float* result,
                    const Squares& squares) {
  std::array<float, kBlock> copy;
  for (std::int64_t begin = 0; begin < numel; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, numel - begin);
    std::copy_n(result + begin, count, copy.data());
    own = copy.data();
    kernels::ordered_chain({}, count, DType::fp32, contributions, 0.0f, result + begin,
                           {squares.sum, squares.first + begin});
    for (const void*& contribution : contributions)
      contribution = static_cast<const float*>(contribution) + count;
  }
}

}  // namespace

void ordered_chain(std::span<const void*> contributions, DType type, std::int64_t numel, bool accumulate,
                   float* result, const Squares& squares) {
  const auto own = std::find(contributions.begin(), contributions.end(), result);
  if (own != contributions.end() && own - contributions.begin() >= kernels::kFirstSweep)
    chain_in_place(contributions, *own, numel, result, squares);
  else
    kernels::ordered_chain({}, numel, type, contributions, accumulate ? 1.0f : 0.0f, result, squares);
}

void balanced_sum(std::span<const void*> contributions, DType type, std::int64_t numel, float* result) {
  const int scratch_blocks = kernels::balanced_scratch(static_cast<int>(contributions.size()));
  if (scratch_blocks == 0) return ordered_chain(contributions, type, numel, false, result);  // it is one
  std::array<float, kBlock> sum;  // only then is the result written: it may be a contribution
  std::vector<float> scratch(static_cast<std::size_t>(kBlock * scratch_blocks));
  for (std::int64_t begin = 0; begin < numel; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, numel - begin);
    kernels::balanced_sum({}, count, type, contributions, sum.data(), scratch.data());
    std::copy_n(sum.data(), count, result + begin);
    for (const void*& contribution : contributions)
      contribution = static_cast<const char*>(contribution) + count * bytes_of(type);
  }
}

void reduce(const ReduceScatter& call, std::span<const void*> contributions, std::int64_t numel,
            float* result, const Squares& squares) {
  if (call.balanced)
    balanced_sum(contributions, call.wire, numel, result);
  else
    ordered_chain(contributions, call.wire, numel, call.accumulate, result, squares);
}

std::int64_t contributed_bytes(const ReduceScatter& call, int rank) {
  const int peers = call.contributors.count - (call.contributors.contains(rank) ? 1 : 0);
  return peers * call.shard_numel * bytes_of(call.wire);
}

void take_squares(const ReduceScatter& call) {
  if (call.squares.sum != nullptr)
    kernels::sum_of_squares({}, call.shard_numel, DType::fp32, call.shard, call.squares);
}

void ordered_chain(std::span<const void*> contributions, std::int64_t numel, double* result) {
  std::array<double, kBlock> sums;
  for (std::int64_t begin = 0; begin < numel; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, numel - begin);
    std::copy_n(static_cast<const double*>(contributions[0]) + begin, count, sums.data());
    for (const void* contribution : contributions.subspan(1)) {
      const double* values = static_cast<const double*>(contribution) + begin;
      for (std::int64_t i = 0; i < count; ++i) sums[static_cast<std::size_t>(i)] += values[i];
    }
    std::copy_n(sums.data(), count, result + begin);  // only now: one contribution may be the result
  }
}

}  // namespace tessera::comm
