#include "kernels/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

#include "hwy/cache_control.h"
#include "kernels/check.h"
#include "kernels/cpu/block_squares.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reduce.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

constexpr int kRow = 8;  // elements of a block that are squared side by side
using DoubleTag = hn::CappedTag<double, kRow>;
using FloatOfDoubleTag = hn::Rebind<float, DoubleTag>;
constexpr int kDoubleLanes = static_cast<int>(hn::MaxLanes(DoubleTag()));
constexpr int kRowVectors = kRow / kDoubleLanes;

// As many as a vector has doubles.
HWY_INLINE hn::Vec<FloatOfDoubleTag> load_floats(const float* x) { return hn::LoadU(FloatOfDoubleTag(), x); }
HWY_INLINE hn::Vec<FloatOfDoubleTag> load_floats(const Bf16* x) {
  const hn::Rebind<std::uint16_t, FloatOfDoubleTag> halves;
  const auto bits = hn::LoadU(halves, reinterpret_cast<const std::uint16_t*>(x));
  return hn::BitCast(FloatOfDoubleTag(),
                     hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToSigned<FloatOfDoubleTag>(), bits)));
}

// x[0]² + x[32]². The square of an fp32 is exact in float64, so a fused multiply-add and a separate one
// agree.
template <class T>
HWY_INLINE hn::Vec<DoubleTag> first_squares(const T* x) {
  const auto near = hn::PromoteTo(DoubleTag(), load_floats(x));
  const auto far = hn::PromoteTo(DoubleTag(), load_floats(x + kSquareBlock / 2));
  return hn::MulAdd(far, far, hn::Mul(near, near));
}

// Adds the lanes up: those half their number apart first.
template <class Tag>
HWY_INLINE double sum_of_lanes(Tag, hn::Vec<Tag> v) {
  if constexpr (hn::MaxLanes(Tag()) == 1) {
    return hn::GetLane(v);
  } else {
    const hn::Half<Tag> half;
    return sum_of_lanes(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// Elements 32 apart are added first, then 16, 8, 4, 2 and 1.
template <class T>
HWY_INLINE double squares_of_block(const T* x) {
  hn::Vec<DoubleTag> sums[kRowVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kRowVectors; ++v) {
    const T* const lanes = x + v * kDoubleLanes;
    const auto even = hn::Add(first_squares(lanes), first_squares(lanes + 2 * kRow));
    const auto odd = hn::Add(first_squares(lanes + kRow), first_squares(lanes + 3 * kRow));
    sums[v] = hn::Add(even, odd);
  }
#pragma GCC unroll 3
  for (int apart = kRowVectors / 2; apart > 0; apart /= 2)
#pragma GCC unroll 4
    for (int v = 0; v < apart; ++v) sums[v] = hn::Add(sums[v], sums[v + apart]);
  return sum_of_lanes(DoubleTag(), sums[0]);
}

HWY_INLINE double squares_of_block(const Fp16* x) {
  alignas(64) float wide[kSquareBlock];
  for (int i = 0; i < kSquareBlock; i += 16) store16(load16(x + i), wide + i);
  return squares_of_block(wide);
}

// The same of fewer elements than a block has. The missing ones count as 0.
template <class T>
HWY_INLINE double squares_of_rest(const T* x, std::int64_t count) {
  T rest[kSquareBlock] = {};
  std::memcpy(rest, x, static_cast<std::size_t>(count) * sizeof(T));
  return squares_of_block(rest);
}

// Elements that are worked on at a time: few enough that an accumulator stays in the first cache level while
// all contributions are added.
constexpr std::int64_t kChunk = 4096;

// sums[b] = the squares of block b, of up to kChunk elements.
template <class T>
HWY_INLINE void block_squares(const T* x, std::int64_t count, double* sums) {
  std::int64_t i = 0;
  for (; i + kSquareBlock <= count; i += kSquareBlock) {
    fetch_lines(x, i + kAheadBytes / std::int64_t{sizeof(T)});
    *sums++ = squares_of_block(x + i);
  }
  if (i < count) *sums = squares_of_rest(x + i, count - i);
}

template <class T>
HWY_INLINE void squares_of(const T* x, std::int64_t begin, std::int64_t end, const Squares& squares) {
  for (std::int64_t i = begin; i < end; i += kChunk) {
    const std::int64_t count = std::min(kChunk, end - i);
    double sums[kChunk / kSquareBlock];
    block_squares(x + i, count, sums);
    cpu::add_block_squares(sums, x + i, count, {squares.sum, squares.first + i});
  }
}

void squares_range(DType type, const void* input, std::int64_t begin, std::int64_t end,
                   const Squares& squares) {
  switch (type) {
    case DType::fp32:
      return squares_of(static_cast<const float*>(input), begin, end, squares);
    case DType::bf16:
      return squares_of(static_cast<const Bf16*>(input), begin, end, squares);
    case DType::fp16:
      return squares_of(static_cast<const Fp16*>(input), begin, end, squares);
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

// The same from c[0], past the caches, and with the squares of up to kChunk elements by blocks where `sums`
// is given: what is stored so is not read again.
template <class T, int kCount>
HWY_NOINLINE void streamed_sweep(const T* const (&c)[kCount], std::int64_t count, float* accumulator,
                                 double* sums) {
  std::int64_t i = 0;
  for (; i + kSquareBlock <= count; i += kSquareBlock) {
    for (int j = 0; j < kCount; ++j) fetch_lines(c[j], i + kAheadBytes / std::int64_t{sizeof(T)});
    alignas(64) float block[kSquareBlock];
#pragma GCC unroll 4
    for (int part = 0; part < kSquareBlock; part += 16) {
      V16 sum = load16(c[0] + i + part);
      for (int j = 1; j < kCount; ++j) sum = add(sum, load16(c[j] + i + part));
      stream16(sum, accumulator + i + part);
      if (sums != nullptr) store16(sum, block + part);
    }
    if (sums != nullptr) *sums++ = squares_of_block(block);
  }
  if (i == count) return;
  const T* rest[kCount];
  for (int j = 0; j < kCount; ++j) rest[j] = c[j] + i;
  sweep<T, kCount>(rest, count - i, false, accumulator + i);
  if (sums != nullptr) *sums = squares_of_rest(accumulator + i, count - i);
}

// Each sweep reads all of its contributions at a place before it writes there: in the first one any of them
// may be the accumulator.
template <class T, int kCount = kFirstSweep>
HWY_INLINE void sweep_of(std::int64_t contribution_count, const void* const* contributions,
                         std::int64_t begin, std::int64_t count, Start start, float* accumulator,
                         double* sums) {
  if (contribution_count >= kCount) {
    const T* c[kCount];
    for (int j = 0; j < kCount; ++j) c[j] = static_cast<const T*>(contributions[j]) + begin;
    if (start == Start::from_first_streamed)
      streamed_sweep<T, kCount>(c, count, accumulator, sums);
    else
      sweep<T, kCount>(c, count, start == Start::from_accumulator, accumulator);
  } else if constexpr (kCount > 1) {
    sweep_of<T, kCount - 1>(contribution_count, contributions, begin, count, start, accumulator, sums);
  }
}

// `sums`, where given: the squares by blocks.
template <class T>
HWY_INLINE void chain_chunk(std::span<const void* const> contributions, std::int64_t begin,
                            std::int64_t count, Start start, float* accumulator, double* sums) {
  const auto all = static_cast<std::int64_t>(contributions.size());
  for (std::int64_t done = 0; done < all; done += kFirstSweep)
    sweep_of<T>(all - done, contributions.data() + done, begin, count,
                done > 0 ? Start::from_accumulator : start, accumulator, sums);
  if (sums != nullptr && start != Start::from_first_streamed) block_squares(accumulator, count, sums);
}

template <class T>
HWY_INLINE void chain_of(std::span<const void* const> contributions, std::int64_t begin, std::int64_t end,
                         Start start, float* accumulator, const Squares& squares) {
  for (std::int64_t i = begin; i < end; i += kChunk) {
    const std::int64_t count = std::min(kChunk, end - i);
    double sums[kChunk / kSquareBlock];
    chain_chunk<T>(contributions, i, count, start, accumulator + i, squares.sum != nullptr ? sums : nullptr);
    if (squares.sum != nullptr)
      cpu::add_block_squares(sums, accumulator + i, count, {squares.sum, squares.first + i});
  }
  if (start == Start::from_first_streamed) hwy::FlushStream();
}

void chain_range(DType type, std::span<const void* const> contributions, std::int64_t begin, std::int64_t end,
                 bool from_accumulator, bool streamed, float* accumulator, const Squares& squares) {
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

using SquareSumWords = decltype(SquareSum::sum);
using Word128 = unsigned __int128;

// From here on a chain's sums are taken to leave the caches before they are used.
constexpr std::int64_t kStreamedNumel = 1 << 19;

// Where the accumulator is only written, by one sweep, reading its lines into the caches first would be
// wasted.
bool is_streamed(std::int64_t numel, std::span<const void* const> contributions, const float* accumulator) {
  return numel >= kStreamedNumel && contributions.size() <= kFirstSweep &&
         reinterpret_cast<std::uintptr_t>(accumulator) % 64 == 0 &&
         std::ranges::find(contributions, accumulator) == contributions.end();
}

// The same sum as of add_magnitude() for each, faster: those that are not much smaller than the largest,
// `most` as bits, are added in 128 bits first. All are finite, and there are fewer than 2^11.
void add_magnitudes(SquareSumWords& to, std::span<const double> sums, std::uint64_t most) {
  constexpr std::uint64_t kImplied = std::uint64_t{1} << 52;
  const int base = std::max(exact::lowest_bit(to, most), 63) - 63;
  Word128 near = 0;
  for (const double sum : sums) {
    const auto bits = bits_as<std::uint64_t>(sum);
    const int shift = exact::lowest_bit(to, bits) - base;
    if (shift >= 0)
      near += static_cast<Word128>(bits % kImplied + kImplied) * (std::uint64_t{1} << shift);
    else
      exact::add_magnitude(to, sum);
  }
  exact::add_at(to, base, static_cast<std::uint64_t>(near));
  exact::add_at(to, base + 64, static_cast<std::uint64_t>(near >> 64));
}

template <class T>
void add_squares_of(const double* sums, const T* elements, std::int64_t count, const Squares& squares) {
  const std::span all(sums, static_cast<std::size_t>((count + kSquareBlock - 1) / kSquareBlock));
  std::uint64_t most = 0;
  for (const double sum : all) most = std::max(most, bits_as<std::uint64_t>(sum));
  // Squares of finite fp32 numbers never overflow float64: a sum is finite where its elements are.
  if (most < bits_as<std::uint64_t>(std::numeric_limits<double>::infinity()))
    return add_magnitudes(squares.sum->sum, all, most);
  for (std::int64_t begin = 0; begin < count; begin += kSquareBlock) {
    const double sum = sums[begin / kSquareBlock];
    exact::add_squares(*squares.sum, sum);
    if (std::isfinite(sum)) continue;
    std::int64_t i = begin;
    while (std::isfinite(to_float(elements[i]))) ++i;
    exact::note_nonfinite(*squares.sum, squares.first + i);
  }
}

// function(begin, end, squares) for parts of [0, numel), each with a sum of its own; then all sums are added.
template <class Function>
void parallel_squares(int threads, std::int64_t numel, const Squares& squares, const Function& function) {
  std::mutex mutex;
  parallel_ranges(threads, numel, kElementwiseGrain, [&](std::int64_t begin, std::int64_t end, int) {
    SquareSum own;
    function(begin, end, {squares.sum != nullptr ? &own : nullptr, squares.first});
    if (squares.sum == nullptr) return;
    const std::lock_guard lock(mutex);
    exact::add(*squares.sum, own);
  });
}

}  // namespace

void add_block_squares(const double* sums, const float* elements, std::int64_t count,
                       const Squares& squares) {
  add_squares_of(sums, elements, count, squares);
}
void add_block_squares(const double* sums, const Bf16* elements, std::int64_t count, const Squares& squares) {
  add_squares_of(sums, elements, count, squares);
}
void add_block_squares(const double* sums, const Fp16* elements, std::int64_t count, const Squares& squares) {
  add_squares_of(sums, elements, count, squares);
}

void ordered_chain(const ComputeContext& context, std::int64_t numel, DType type,
                   std::span<const void* const> contributions, float beta, float* accumulator,
                   const Squares& squares) {
  check_chain(contributions.size(), beta);
  const bool streamed = is_streamed(numel, contributions, accumulator);
  static_assert(kElementwiseGrain % kSquareBlock == 0);
  parallel_squares(context.threads, numel, squares,
                   [&](std::int64_t begin, std::int64_t end, const Squares& own) {
                     HWY_DYNAMIC_DISPATCH(chain_range)
                     (type, contributions, begin, end, beta != 0.0f, streamed, accumulator, own);
                   });
}

void sum_of_squares(const ComputeContext& context, std::int64_t numel, DType type, const void* input,
                    const Squares& squares) {
  parallel_squares(context.threads, numel, squares,
                   [&](std::int64_t begin, std::int64_t end, const Squares& own) {
                     HWY_DYNAMIC_DISPATCH(squares_range)(type, input, begin, end, own);
                   });
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
