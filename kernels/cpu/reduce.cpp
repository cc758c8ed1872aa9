#include "kernels/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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

using DoubleTag = hn::CappedTag<double, 8>;
using FloatOfDoubleTag = hn::Rebind<float, DoubleTag>;
constexpr int kDoubleLanes = static_cast<int>(hn::MaxLanes(DoubleTag()));
constexpr int kSquareVectors = kSquareLanes / kDoubleLanes;

// The squares of a block, lane by lane.
struct LaneSums {
  hn::Vec<DoubleTag> vector[kSquareVectors];
};

HWY_INLINE LaneSums no_squares() {
  LaneSums sums;
  for (auto& vector : sums.vector) vector = hn::Zero(DoubleTag());
  return sums;
}

// As many as a vector has doubles.
HWY_INLINE hn::Vec<FloatOfDoubleTag> load_floats(const float* x) { return hn::LoadU(FloatOfDoubleTag(), x); }
HWY_INLINE hn::Vec<FloatOfDoubleTag> load_floats(const Bf16* x) {
  const hn::Rebind<std::uint16_t, FloatOfDoubleTag> halves;
  const auto bits = hn::LoadU(halves, reinterpret_cast<const std::uint16_t*>(x));
  return hn::BitCast(FloatOfDoubleTag(),
                     hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToSigned<FloatOfDoubleTag>(), bits)));
}

// The square of an fp32 is exact in float64, so a fused multiply-add and a separate one agree.
template <class T>
HWY_INLINE void add_squares(const T* x, LaneSums& sums) {
#pragma GCC unroll 16
  for (int i = 0; i < kSquareVectors; ++i) {
    const auto value = hn::PromoteTo(DoubleTag(), load_floats(x + i * kDoubleLanes));
    sums.vector[i] = hn::MulAdd(value, value, sums.vector[i]);
  }
}

HWY_INLINE void add_squares(const Fp16* x, LaneSums& sums) {
  alignas(64) float wide[kSquareLanes];
  store16(load16(x), wide);
  store16(load16(x + 16), wide + 16);
  add_squares(wide, sums);
}

// Of fewer than kSquareLanes, 1 at least.
template <class T>
HWY_INLINE void add_last_squares(const T* x, std::int64_t count, LaneSums& sums) {
  T rest[kSquareLanes] = {};
  std::memcpy(rest, x, static_cast<std::size_t>(count) * sizeof(T));
  add_squares(rest, sums);
}

HWY_INLINE double total_of(const LaneSums& sums) {
  alignas(64) double lane[kSquareLanes];
  for (int v = 0; v < kSquareVectors; ++v) hn::Store(sums.vector[v], DoubleTag(), lane + v * kDoubleLanes);
  return add_lanes(lane);
}

template <class T>
HWY_INLINE double squares_of_block(const T* x, std::int64_t count) {
  LaneSums sums = no_squares();
  std::int64_t i = 0;
  for (; i + kSquareLanes <= count; i += kSquareLanes) {
    if (i % 64 == 0) fetch_lines(x, i + kAheadBytes / std::int64_t{sizeof(T)});
    add_squares(x + i, sums);
  }
  if (i < count) add_last_squares(x + i, count - i, sums);
  return total_of(sums);
}

template <class T>
HWY_INLINE void squares_of(const T* x, std::int64_t count, double* sums) {
  for (std::int64_t i = 0; i < count; i += kSquareBlock)
    *sums++ = squares_of_block(x + i, std::min(kSquareBlock, count - i));
}

// Of `count` elements that begin with a block.
void squares_range(DType type, const void* input, std::int64_t begin, std::int64_t count, double* sums) {
  switch (type) {
    case DType::fp32:
      return squares_of(static_cast<const float*>(input) + begin, count, sums);
    case DType::bf16:
      return squares_of(static_cast<const Bf16*>(input) + begin, count, sums);
    case DType::fp16:
      return squares_of(static_cast<const Fp16*>(input) + begin, count, sums);
  }
}

// Where a chain starts, and how it is stored, which never changes a result.
enum class Start : std::uint8_t { from_accumulator, from_first, from_first_streamed };

// accumulator = ((start + c[0]) + c[1]) + ... for kCount contributions; the start is the accumulator, or c[0]
// itself.
template <class T, int kCount>
HWY_NOINLINE void sweep(const T* const (&c)[kCount], std::int64_t count, bool from_accumulator,
                        float* accumulator) {
  for (std::int64_t i = 0; i < count; i += 16) {
    V16 sum = load_some(c[0] + i, count - i);
    if (from_accumulator) sum = add(load_some(accumulator + i, count - i), sum);
    for (int j = 1; j < kCount; ++j) sum = add(sum, load_some(c[j] + i, count - i));
    store_some(sum, accumulator + i, count - i);
  }
}

// The same from c[0], past the caches, and with the squares of up to a block where `squares` is given: what
// is stored so is not read again.
template <class T, int kCount>
HWY_NOINLINE void streamed_block(const T* const (&c)[kCount], std::int64_t begin, std::int64_t count,
                                 float* accumulator, double* squares) {
  LaneSums lanes = no_squares();
  std::int64_t i = begin;
  for (; i + kSquareLanes <= begin + count; i += kSquareLanes) {
    if (i % 64 == 0)
      for (int j = 0; j < kCount; ++j) fetch_lines(c[j], i + kAheadBytes / std::int64_t{sizeof(T)});
    alignas(64) float sums[kSquareLanes];
#pragma GCC unroll 2
    for (int half = 0; half < kSquareLanes; half += 16) {
      V16 sum = load16(c[0] + i + half);
      for (int j = 1; j < kCount; ++j) sum = add(sum, load16(c[j] + i + half));
      stream16(sum, accumulator + i + half);
      if (squares != nullptr) store16(sum, sums + half);
    }
    if (squares != nullptr) add_squares(sums, lanes);
  }
  if (i < begin + count) {
    const T* rest[kCount];
    for (int j = 0; j < kCount; ++j) rest[j] = c[j] + i;
    sweep<T, kCount>(rest, begin + count - i, false, accumulator + i);
    if (squares != nullptr) add_last_squares(accumulator + i, begin + count - i, lanes);
  }
  if (squares != nullptr) *squares = total_of(lanes);
}

// Each sweep reads all of its contributions at a place before it writes there: in the first one any of them
// may be the accumulator.
template <class T, int kCount = kFirstSweep>
HWY_INLINE void sweep_of(std::int64_t contribution_count, const void* const* contributions,
                         std::int64_t begin, std::int64_t count, Start start, float* accumulator,
                         double* squares) {
  if (contribution_count >= kCount) {
    const T* c[kCount];
    for (int j = 0; j < kCount; ++j) c[j] = static_cast<const T*>(contributions[j]) + begin;
    if (start != Start::from_first_streamed)
      return sweep<T, kCount>(c, count, start == Start::from_accumulator, accumulator);
    for (std::int64_t i = 0; i < count; i += kSquareBlock)
      streamed_block<T, kCount>(c, i, std::min(kSquareBlock, count - i), accumulator,
                                squares != nullptr ? squares++ : nullptr);
  } else if constexpr (kCount > 1) {
    sweep_of<T, kCount - 1>(contribution_count, contributions, begin, count, start, accumulator, squares);
  }
}

// Elements whose accumulator stays in the first cache level while all contributions are added.
constexpr std::int64_t kChainBlock = 4 * kSquareBlock;

template <class T>
HWY_INLINE void chain_block(std::span<const void* const> contributions, std::int64_t begin,
                            std::int64_t count, Start start, float* accumulator, double* squares) {
  const auto all = static_cast<std::int64_t>(contributions.size());
  for (std::int64_t done = 0; done < all; done += kFirstSweep)
    sweep_of<T>(all - done, contributions.data() + done, begin, count,
                done > 0 ? Start::from_accumulator : start, accumulator, squares);
  if (squares != nullptr && start != Start::from_first_streamed) squares_of(accumulator, count, squares);
}

template <class T>
HWY_INLINE void chain_of(std::span<const void* const> contributions, std::int64_t begin, std::int64_t end,
                         Start start, float* accumulator, double* squares) {
  for (std::int64_t i = begin; i < end; i += kChainBlock)
    chain_block<T>(contributions, i, std::min(kChainBlock, end - i), start, accumulator + i,
                   squares != nullptr ? squares + i / kSquareBlock : nullptr);
  if (start == Start::from_first_streamed) hwy::FlushStream();
}

// Of elements that begin with a block.
void chain_range(DType type, std::span<const void* const> contributions, std::int64_t begin, std::int64_t end,
                 bool from_accumulator, bool streamed, float* accumulator, double* squares) {
  const Start start = from_accumulator ? Start::from_accumulator
                      : streamed       ? Start::from_first_streamed
                                       : Start::from_first;
  switch (type) {
    case DType::fp32:
      return chain_of<float>(contributions, begin, end, start, accumulator, squares);
    case DType::bf16:
      return chain_of<Bf16>(contributions, begin, end, start, accumulator, squares);
    case DType::fp16:
      return chain_of<Fp16>(contributions, begin, end, start, accumulator, squares);
  }
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels::cpu {

HWY_EXPORT(chain_range);
HWY_EXPORT(squares_range);

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
                   std::span<const void* const> contributions, float beta, float* accumulator,
                   double* squares) {
  check_chain(contributions.size(), beta);
  const bool streamed = is_streamed(numel, contributions, accumulator);
  static_assert(kElementwiseGrain % kSquareBlock == 0);
  parallel_ranges(context.threads, numel, kElementwiseGrain, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(chain_range)
    (type, contributions, begin, end, beta != 0.0f, streamed, accumulator, squares);
  });
}

void block_squares(const ComputeContext& context, std::int64_t numel, DType type, const void* input,
                   double* sums) {
  parallel_ranges(context.threads, numel, kElementwiseGrain, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(squares_range)(type, input, begin, end - begin, sums + begin / kSquareBlock);
  });
}

void add_block_squares(const ComputeContext&, std::int64_t numel, DType type, const void* input,
                       const double* sums, SumOfSquares* result) {
  *result = {};
  double lanes[kBlockLanes] = {};
  for (std::int64_t block = 0; block < square_blocks(numel); ++block) {
    // Squares of finite fp32 numbers never overflow float64: a block's sum is finite exactly where its
    // elements are.
    if (result->first_nonfinite < 0 && !std::isfinite(sums[block]))
      result->first_nonfinite =
          first_nonfinite(type, input, block * kSquareBlock, std::min(numel, (block + 1) * kSquareBlock));
    lanes[block % kBlockLanes] += sums[block];
  }
  result->sum = add_lanes(lanes);
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
