// Philox4x32-10 for as many counters at once as a vector has lanes. Included once per target (Highway's
// foreach_target.h), hence no #pragma once.
#if defined(TESSERA_KERNELS_CPU_PHILOX_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_PHILOX_INL_H
#undef TESSERA_KERNELS_CPU_PHILOX_INL_H
#else
#define TESSERA_KERNELS_CPU_PHILOX_INL_H
#endif

#include "kernels/cpu/v16-inl.h"
#include "kernels/philox_math.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// low and high = the lower and upper 32 bits of a * factor.
HWY_INLINE void multiply_wide(WordVector a, std::uint32_t factor, WordVector& low, WordVector& high) {
  const WordTag d;
  const hn::RepartitionToWide<WordTag> wide;
  const WordVector b = hn::Set(d, factor);
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))), b);
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
}

// Counters, or the random words made of them.
struct PhiloxVectors {
  WordVector c0, c1, c2, c3;
};

HWY_INLINE PhiloxVectors philox_vectors(std::uint64_t key, PhiloxVectors v) {
  const WordTag d;
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    WordVector low_a, high_a, low_b, high_b;
    multiply_wide(v.c0, kPhiloxMultiply0, low_a, high_a);
    multiply_wide(v.c2, kPhiloxMultiply1, low_b, high_b);
    v.c0 = hn::Xor(hn::Xor(high_b, v.c1), hn::Set(d, k0));
    v.c1 = low_b;
    v.c2 = hn::Xor(hn::Xor(high_a, v.c3), hn::Set(d, k1));
    v.c3 = low_a;
    k0 += kPhiloxAdd0;
    k1 += kPhiloxAdd1;
  }
  return v;
}

// Stores the words of each lane after those of the lane before.
HWY_INLINE void store_blocks(const PhiloxVectors& v, std::uint32_t* words) {
  hn::StoreInterleaved4(v.c0, v.c1, v.c2, v.c3, WordTag(), words);
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
