// The random bits of dropout.h for 128 elements at a time, and their use. Included once per target (Highway's
// foreach_target.h), hence no #pragma once.
#if defined(TESSERA_KERNELS_CPU_DROPOUT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_DROPOUT_INL_H
#undef TESSERA_KERNELS_CPU_DROPOUT_INL_H
#else
#define TESSERA_KERNELS_CPU_DROPOUT_INL_H
#endif

#include "kernels/cpu/philox-inl.h"
#include "kernels/cpu/v16-inl.h"
#include "kernels/dropout_math.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// halves [kRows, 128 / kRows]: the random bits of the elements from 8 * block on, in kRows (1 or 2) rows. A
// vector lane computes a block of eight elements.
template <int kRows>
HWY_INLINE void draw_halves(const Dropout& dropout, const DrawnRow& at, std::uint32_t block,
                            std::uint16_t* halves) {
  static_assert(kRows == 1 || kRows == 2);
  for (int part = 0; part < kParts; ++part) {
    const WordTag d;
    const WordVector lane = hn::Iota(d, static_cast<std::uint32_t>(part * kVectorLanes));
    PhiloxVectors counter = {hn::Add(hn::And(lane, hn::Set(d, 16 / kRows - 1)), hn::Set(d, block)),
                             hn::Set(d, at.row), hn::Set(d, dropout.matrix + at.matrix),
                             hn::Set(d, dropout.first_sequence + at.sequence)};
    if constexpr (kRows == 2) counter.c1 = hn::Add(counter.c1, hn::ShiftRight<3>(lane));
    alignas(64) std::uint32_t words[4 * kVectorLanes];
    store_blocks(philox_vectors(dropout.key, counter), words);
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
