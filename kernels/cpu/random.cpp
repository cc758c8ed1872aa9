#include "kernels/random.h"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/cpu/parallel.h"
#include "tessera/philox.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/random.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// As many doubles as a vector of words has halves.
using DoubleTag = hn::Repartition<double, WordTag>;
using LongTag = hn::RebindToUnsigned<DoubleTag>;
using DoubleVector = hn::Vec<DoubleTag>;
using LongVector = hn::Vec<LongTag>;
constexpr int kDoubles = static_cast<int>(hn::MaxLanes(DoubleTag()));

HWY_INLINE DoubleVector set(double value) { return hn::Set(DoubleTag(), value); }
HWY_INLINE LongVector set_bits(std::uint64_t bits) { return hn::Set(LongTag(), bits); }
HWY_INLINE DoubleVector as_double(LongVector bits) { return hn::BitCast(DoubleTag(), bits); }
HWY_INLINE LongVector as_bits(DoubleVector value) { return hn::BitCast(LongTag(), value); }

template <std::size_t kCount>
HWY_INLINE DoubleVector polynomial(const std::array<double, kCount>& coefficients, DoubleVector x) {
  DoubleVector sum = set(coefficients[0]);
  for (std::size_t i = 1; i < kCount; ++i) sum = fused(sum, x, set(coefficients[i]));
  return sum;
}

// What follows does what the functions of the same names in tessera/philox.h do, operation by operation.
HWY_INLINE DoubleVector uniform(LongVector bits) {
  const DoubleVector whole =
      hn::Sub(as_double(hn::Or(hn::ShiftRight<12>(bits), set_bits(0x4330000000000000))), set(0x1p52));
  return hn::Mul(hn::Add(whole, set(0.5)), set(0x1p-52));
}

HWY_INLINE DoubleVector log_below_1(DoubleVector a) {
  const DoubleVector round = set(normal_math::kRound);
  const LongVector bits = as_bits(a);
  const LongVector raised = hn::Add(bits, set_bits(0x3FF0000000000000 - normal_math::kSqrtHalfBits));
  const LongVector exponent = hn::Sub(hn::ShiftRight<52>(raised), set_bits(1023));
  const DoubleVector m = as_double(hn::Sub(bits, hn::ShiftLeft<52>(exponent)));
  const DoubleVector e = hn::Sub(as_double(hn::Add(as_bits(round), exponent)), round);
  const DoubleVector f = hn::Sub(m, set(1.0));
  const DoubleVector s = hn::Div(f, hn::Add(f, set(2.0)));
  const DoubleVector z = hn::Mul(s, s);
  return fused(e, set(normal_math::kLn2),
               fused(hn::Mul(s, z), polynomial(normal_math::kAtanh, z), hn::Add(s, s)));
}

HWY_INLINE DoubleVector negated(DoubleVector value, LongVector sign) {
  return as_double(hn::Xor(as_bits(value), hn::ShiftLeft<62>(hn::And(sign, set_bits(2)))));
}

HWY_INLINE void direction(DoubleVector b, DoubleVector& cosine, DoubleVector& sine) {
  const DoubleVector round = set(normal_math::kRound);
  const DoubleVector shifted = fused(b, set(4.0), round);
  const LongVector quarter = as_bits(shifted);
  const DoubleVector x = hn::Mul(fused(hn::Sub(shifted, round), set(-0.25), b), set(normal_math::kTwoPi));
  const DoubleVector z = hn::Mul(x, x);
  const DoubleVector s = fused(hn::Mul(polynomial(normal_math::kSine, z), z), x, x);
  const DoubleVector c = polynomial(normal_math::kCosine, z);
  const auto odd = hn::RebindMask(DoubleTag(), hn::TestBit(quarter, set_bits(1)));
  cosine = negated(hn::IfThenElse(odd, s, c), hn::Add(quarter, set_bits(1)));
  sine = negated(hn::IfThenElse(odd, c, s), quarter);
}

// The values of kDoubles pairs, from their two halves of random bits.
HWY_INLINE void pairs_of(Distribution distribution, LongVector first, LongVector second, DoubleVector scale,
                         float* out) {
  DoubleVector a = uniform(first), b = uniform(second);
  if (distribution == Distribution::normal) {
    const DoubleVector radius = hn::Sqrt(hn::Mul(set(-2.0), log_below_1(a)));
    direction(b, a, b);
    a = hn::Mul(radius, a);
    b = hn::Mul(radius, b);
  } else {
    a = hn::Sub(hn::Mul(set(2.0), a), set(1.0));
    b = hn::Sub(hn::Mul(set(2.0), b), set(1.0));
  }
  const hn::Rebind<float, DoubleTag> floats;
  hn::StoreInterleaved2(hn::DemoteTo(floats, hn::Mul(scale, a)), hn::DemoteTo(floats, hn::Mul(scale, b)),
                        floats, out);
}

// The 32 values of 16 consecutive blocks, whose numbers differ in their lower half only.
void draw_blocks(Distribution distribution, double scale, std::uint64_t seed, std::uint64_t stream,
                 std::uint64_t block, float* out) {
  const WordTag d;
  for (int part = 0; part < kParts; ++part) {
    const auto low = static_cast<std::uint32_t>(block) + static_cast<std::uint32_t>(part * kVectorLanes);
    alignas(64) std::uint32_t words[4 * kVectorLanes];
    store_blocks(philox_vectors(seed, {hn::Iota(d, low), hn::Set(d, static_cast<std::uint32_t>(block >> 32)),
                                       hn::Set(d, static_cast<std::uint32_t>(stream)),
                                       hn::Set(d, static_cast<std::uint32_t>(stream >> 32))}),
                 words);
    for (int half = 0; half < 2; ++half) {
      const auto* halves = reinterpret_cast<const std::uint64_t*>(words) + half * 2 * kDoubles;
      LongVector first, second;
      hn::LoadInterleaved2(LongTag(), halves, first, second);
      pairs_of(distribution, first, second, set(scale), out + (part * 2 + half) * 2 * kDoubles);
    }
  }
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(draw_blocks);

namespace {

constexpr std::uint64_t kBlocks = 16, kDrawn = 2 * kBlocks;

// The values of elements [first, end), which lie in kBlocks blocks from an element that kDrawn divides.
void draw_part(Distribution distribution, double scale, std::uint64_t seed, std::uint64_t stream,
               std::uint64_t first, std::uint64_t end, float* out) {
  const std::uint64_t block = first / kDrawn * kBlocks;
  if (end - first == kDrawn)
    return HWY_DYNAMIC_DISPATCH(draw_blocks)(distribution, scale, seed, stream, block, out);
  float all[kDrawn];
  HWY_DYNAMIC_DISPATCH(draw_blocks)(distribution, scale, seed, stream, block, all);
  std::copy_n(all + (first - 2 * block), end - first, out);
}

}  // namespace

void draw_values(int threads, Distribution distribution, double scale, std::uint64_t seed,
                 std::uint64_t stream, std::uint64_t begin, std::span<float> out) {
  static_assert(kElementwiseGrain % kDrawn == 0);
  parallel_ranges(threads, static_cast<std::int64_t>(out.size()), kElementwiseGrain,
                  [&](std::int64_t from, std::int64_t to, int) {
                    const std::uint64_t last = begin + static_cast<std::uint64_t>(to);
                    for (std::uint64_t at = begin + static_cast<std::uint64_t>(from); at < last;) {
                      const std::uint64_t end = std::min(last, (at / kDrawn + 1) * kDrawn);
                      draw_part(distribution, scale, seed, stream, at, end, out.data() + (at - begin));
                      at = end;
                    }
                  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
