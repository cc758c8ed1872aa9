#include "kernels/reduce.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "hwy/cache_control.h"
#include "kernels/check.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reduce.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// Where a chain starts, and how it is stored, which never changes a result.
enum class Start : std::uint8_t { from_accumulator, from_first, from_first_streamed };

// accumulator = ((start + c[0]) + c[1]) + ... for kCount contributions; the start is the accumulator, or c[0]
// itself.
template <class T, int kCount>
HWY_INLINE void sweep(const void* const* contributions, std::int64_t begin, std::int64_t count, Start start,
                      float* accumulator) {
  const T* c[kCount];
  for (int j = 0; j < kCount; ++j) c[j] = static_cast<const T*>(contributions[j]) + begin;
  std::int64_t i = 0;
  if (start == Start::from_first_streamed)
    for (; i + 16 <= count; i += 16) {
      if (i % 64 == 0)
        for (int j = 0; j < kCount; ++j) fetch_lines(c[j], i + kAheadBytes / std::int64_t{sizeof(T)});
      V16 sum = load16(c[0] + i);
      for (int j = 1; j < kCount; ++j) sum = add(sum, load16(c[j] + i));
      stream16(sum, accumulator + i);
    }
  for (; i < count; i += 16) {
    V16 sum = load_some(c[0] + i, count - i);
    if (start == Start::from_accumulator) sum = add(load_some(accumulator + i, count - i), sum);
    for (int j = 1; j < kCount; ++j) sum = add(sum, load_some(c[j] + i, count - i));
    store_some(sum, accumulator + i, count - i);
  }
}

// Each sweep reads all of its contributions at a place before it writes there: in the first one any of them
// may be the accumulator.
template <class T, int kCount = kFirstSweep>
HWY_INLINE void sweep_of(std::int64_t contribution_count, const void* const* contributions,
                         std::int64_t begin, std::int64_t count, Start start, float* accumulator) {
  if (contribution_count >= kCount)
    sweep<T, kCount>(contributions, begin, count, start, accumulator);
  else if constexpr (kCount > 1)
    sweep_of<T, kCount - 1>(contribution_count, contributions, begin, count, start, accumulator);
}

template <class T>
HWY_INLINE void chain_block(const void* const* contributions, std::int64_t contribution_count,
                            std::int64_t begin, std::int64_t count, Start start, float* accumulator) {
  for (std::int64_t done = 0; done < contribution_count; done += kFirstSweep)
    sweep_of<T>(contribution_count - done, contributions + done, begin, count,
                done > 0 ? Start::from_accumulator : start, accumulator);
}

// Elements whose accumulator stays in the first cache level while all contributions are added.
constexpr std::int64_t kChainBlock = 4096;

template <class T>
HWY_INLINE void chain_of(const void* const* contributions, std::int64_t contribution_count,
                         std::int64_t begin, std::int64_t end, Start start, float* accumulator) {
  for (std::int64_t i = begin; i < end; i += kChainBlock)
    chain_block<T>(contributions, contribution_count, i, std::min(kChainBlock, end - i), start,
                   accumulator + i);
  if (start == Start::from_first_streamed) hwy::FlushStream();
}

void chain_range(DType type, const void* const* contributions, std::int64_t contribution_count,
                 std::int64_t begin, std::int64_t end, bool from_accumulator, bool streamed,
                 float* accumulator) {
  const Start start = from_accumulator ? Start::from_accumulator
                      : streamed       ? Start::from_first_streamed
                                       : Start::from_first;
  switch (type) {
    case DType::fp32:
      return chain_of<float>(contributions, contribution_count, begin, end, start, accumulator);
    case DType::bf16:
      return chain_of<Bf16>(contributions, contribution_count, begin, end, start, accumulator);
    case DType::fp16:
      return chain_of<Fp16>(contributions, contribution_count, begin, end, start, accumulator);
  }
}

using DoubleTag = hn::CappedTag<double, 8>;
using FloatOfDoubleTag = hn::Rebind<float, DoubleTag>;
constexpr int kDoubleLanes = static_cast<int>(hn::MaxLanes(DoubleTag()));
constexpr int kSumVectors = kSumLanes / kDoubleLanes;

struct LaneSums {
  hn::Vec<DoubleTag> vector[kSumVectors];
};

// The square of an fp32 is exact in float64, so a fused multiply-add and a separate one agree.
HWY_INLINE void add_squares(const float* x, LaneSums& sums) {
#pragma GCC unroll 16
  for (int i = 0; i < kSumVectors; ++i) {
    const auto value = hn::PromoteTo(DoubleTag(), hn::LoadU(FloatOfDoubleTag(), x + i * kDoubleLanes));
    sums.vector[i] = hn::MulAdd(value, value, sums.vector[i]);
  }
}

HWY_INLINE void add_squares_of_type(const float* x, LaneSums& sums) { add_squares(x, sums); }

template <class T>
HWY_INLINE void add_squares_of_type(const T* x, LaneSums& sums) {
  alignas(64) float wide[kSumLanes];
  store16(load16(x), wide);
  store16(load16(x + 16), wide + 16);
  add_squares(wide, sums);
}

template <class T>
HWY_INLINE double block_sum_of(const T* x, std::int64_t count) {
  LaneSums sums;
  for (int i = 0; i < kSumVectors; ++i) sums.vector[i] = hn::Zero(DoubleTag());
  std::int64_t i = 0;
  for (; i + kSumLanes <= count; i += kSumLanes) add_squares_of_type(x + i, sums);
  if (i < count) {
    T rest[kSumLanes] = {};
    std::memcpy(rest, x + i, static_cast<std::size_t>(count - i) * sizeof(T));
    add_squares_of_type(rest, sums);
  }
  alignas(64) double lane[kSumLanes];
  for (int v = 0; v < kSumVectors; ++v) hn::Store(sums.vector[v], DoubleTag(), lane + v * kDoubleLanes);
  return add_lanes(lane);
}

template <class T>
void block_sums_of(const T* x, std::int64_t numel, std::int64_t begin, std::int64_t end, double* sums) {
  for (std::int64_t block = begin; block < end; ++block)
    *sums++ = block_sum_of(x + block * kSumBlock, std::min(kSumBlock, numel - block * kSumBlock));
}

// Of blocks `begin` up to `end`.
void block_sums(DType type, const void* input, std::int64_t numel, std::int64_t begin, std::int64_t end,
                double* sums) {
  switch (type) {
    case DType::fp32:
      return block_sums_of(static_cast<const float*>(input), numel, begin, end, sums);
    case DType::bf16:
      return block_sums_of(static_cast<const Bf16*>(input), numel, begin, end, sums);
    case DType::fp16:
      return block_sums_of(static_cast<const Fp16*>(input), numel, begin, end, sums);
  }
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels::cpu {

HWY_EXPORT(chain_range);
HWY_EXPORT(block_sums);

namespace {

// From here on a chain's sums are taken to leave the caches before they are used.
constexpr std::int64_t kStreamedNumel = 1 << 19;

// Where the accumulator is only written, by one sweep, reading its lines into the caches first would be
// wasted.
bool is_streamed(std::int64_t numel, std::span<const void* const> contributions, const float* accumulator) {
  return numel >= kStreamedNumel && contributions.size() <= kFirstSweep &&
         reinterpret_cast<std::uintptr_t>(accumulator) % 64 == 0 &&
         std::ranges::find(contributions, accumulator) == contributions.end();
}

template <class T>
std::int64_t first_nonfinite_of(const T* input, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i)
    if (!std::isfinite(to_float(input[i]))) return i;
  return -1;
}

std::int64_t first_nonfinite(DType type, const void* input, std::int64_t begin, std::int64_t end) {
  switch (type) {
    case DType::fp32:
      return first_nonfinite_of(static_cast<const float*>(input), begin, end);
    case DType::bf16:
      return first_nonfinite_of(static_cast<const Bf16*>(input), begin, end);
    case DType::fp16:
      return first_nonfinite_of(static_cast<const Fp16*>(input), begin, end);
  }
  return -1;
}

}  // namespace

void ordered_chain(const ComputeContext& context, std::int64_t numel, DType type,
                   std::span<const void* const> contributions, float beta, float* accumulator) {
  check_chain(contributions.size(), beta);
  const bool streamed = is_streamed(numel, contributions, accumulator);
  parallel_ranges(context.threads, numel, kElementwiseGrain, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(chain_range)
    (type, contributions.data(), static_cast<std::int64_t>(contributions.size()), begin, end, beta != 0.0f,
     streamed, accumulator);
  });
}

void sum_of_squares(const ComputeContext& context, std::int64_t numel, DType type, const void* input,
                    SumOfSquares* result) {
  const std::int64_t blocks = sum_blocks(numel);
  double lanes[kBlockSumLanes] = {};
  *result = {};
  const auto add = [&](std::int64_t begin, std::int64_t end, const double* sums) {
    for (std::int64_t block = begin; block < end; ++block) {
      const double sum = sums[block - begin];
      // Squares of finite fp32 numbers never overflow float64: a block's sum is finite exactly where its
      // elements are.
      if (result->first_nonfinite < 0 && !std::isfinite(sum))
        result->first_nonfinite =
            first_nonfinite(type, input, block * kSumBlock, std::min(numel, (block + 1) * kSumBlock));
      lanes[block % kBlockSumLanes] += sum;
    }
  };
  if (context.threads == 1) {
    double sums[kBlockSumLanes];
    for (std::int64_t begin = 0; begin < blocks; begin += kBlockSumLanes) {
      const std::int64_t end = std::min<std::int64_t>(begin + kBlockSumLanes, blocks);
      HWY_DYNAMIC_DISPATCH(block_sums)(type, input, numel, begin, end, sums);
      add(begin, end, sums);
    }
  } else {
    check_workspace(context, sum_of_squares_workspace_bytes(numel), "sum_of_squares");
    auto* sums = static_cast<double*>(context.workspace.data);
    parallel_ranges(context.threads, blocks, kElementwiseGrain / kSumBlock,
                    [&](std::int64_t begin, std::int64_t end, int) {
                      HWY_DYNAMIC_DISPATCH(block_sums)(type, input, numel, begin, end, sums + begin);
                    });
    add(0, blocks, sums);
  }
  result->sum = add_lanes(lanes);
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
