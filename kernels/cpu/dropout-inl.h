// The random bits of dropout.h for 128 elements at a time, and what they keep. Included once per target
// (Highway's foreach_target.h), hence no #pragma once.
#if defined(TESSERA_KERNELS_CPU_DROPOUT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_DROPOUT_INL_H
#undef TESSERA_KERNELS_CPU_DROPOUT_INL_H
#else
#define TESSERA_KERNELS_CPU_DROPOUT_INL_H
#endif

#include "kernels/cpu/v16-inl.h"
#include "kernels/dropout_math.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

using WordTag = hn::RebindToUnsigned<IntTag>;
using WordVector = hn::Vec<WordTag>;

// low and high = the halves of the products.
HWY_INLINE void multiply_wide(WordVector a, std::uint32_t factor, WordVector& low, WordVector& high) {
  const WordTag d;
  const hn::RepartitionToWide<WordTag> wide;
  const WordVector b = hn::Set(d, factor);
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))), b);
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
}

// halves [kRows, 128 / kRows]: the random bits of elements 8 * block and on, of kRows (1 or 2) rows. A lane
// is a block of eight elements.
template <int kRows>
HWY_INLINE void draw_halves(const Dropout& dropout, const DrawnRow& at, std::uint32_t block,
                            std::uint16_t* halves) {
  static_assert(kRows == 1 || kRows == 2);
  const WordTag d;
  for (int part = 0; part < kParts; ++part) {
    const WordVector lane = hn::Iota(d, static_cast<std::uint32_t>(part * kVectorLanes));
    const WordVector of_row = hn::And(lane, hn::Set(d, 16 / kRows - 1));
    WordVector c0 = hn::Add(of_row, hn::Set(d, block));
    WordVector c1 = hn::Set(d, at.row);
    if constexpr (kRows == 2) c1 = hn::Add(c1, hn::ShiftRight<3>(lane));
    WordVector c2 = hn::Set(d, dropout.matrix + at.matrix);
    WordVector c3 = hn::Set(d, dropout.first_sequence + at.sequence);
    auto k0 = static_cast<std::uint32_t>(dropout.key), k1 = static_cast<std::uint32_t>(dropout.key >> 32);
    for (int round = 0; round < kPhiloxRounds; ++round) {
      WordVector low_a, high_a, low_b, high_b;
      multiply_wide(c0, kPhiloxMultiply0, low_a, high_a);
      multiply_wide(c2, kPhiloxMultiply1, low_b, high_b);
      c0 = hn::Xor(hn::Xor(high_b, c1), hn::Set(d, k0));
      c1 = low_b;
      c2 = hn::Xor(hn::Xor(high_a, c3), hn::Set(d, k1));
      c3 = low_a;
      k0 += kPhiloxAdd0;
      k1 += kPhiloxAdd1;
    }
    alignas(64) std::uint32_t words[4 * kVectorLanes];  // block by block
    hn::StoreInterleaved4(c0, c1, c2, c3, d, words);
    std::memcpy(halves + part * 8 * kVectorLanes, words, sizeof words);  // the lower half first
  }
}

// x where halves[i] is not below the threshold, which is not 0; else 0.
HWY_INLINE V16 keep16(V16 x, const std::uint16_t* halves, std::uint32_t threshold) {
  const IntVector below = hn::Set(IntTag(), static_cast<std::int32_t>(threshold) - 1);
  for (int i = 0; i < kParts; ++i) {
    const auto kept = hn::Gt(load_halves(halves + i * kVectorLanes), below);
    x.part[i] = hn::IfThenElseZero(hn::RebindMask(FloatTag(), kept), x.part[i]);
  }
  return x;
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
