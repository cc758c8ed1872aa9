// Sixteen fp32 lanes for any vector width: one vector with AVX-512, four with SSE4. Kernels written with V16
// give the same bits on every instruction set: lanes never depend on the width, and fma is a true fma
// everywhere. Included once per target (Highway's foreach_target.h), hence no #pragma once.
#if defined(TESSERA_KERNELS_CPU_V16_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_V16_INL_H
#undef TESSERA_KERNELS_CPU_V16_INL_H
#else
#define TESSERA_KERNELS_CPU_V16_INL_H
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/float_types.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using IntTag = hn::RebindToSigned<FloatTag>;
using WordTag = hn::RebindToUnsigned<IntTag>;
using HalfTag = hn::Rebind<std::uint16_t, FloatTag>;
using FloatVector = hn::Vec<FloatTag>;
using IntVector = hn::Vec<IntTag>;
using WordVector = hn::Vec<WordTag>;

constexpr int kVectorLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
constexpr int kParts = 16 / kVectorLanes;

struct V16 {
  FloatVector part[kParts];
};

#define TESSERA_FOR_PARTS for (int i = 0; i < kParts; ++i)

HWY_INLINE V16 set16(float value) {
  V16 r;
  TESSERA_FOR_PARTS r.part[i] = hn::Set(FloatTag(), value);
  return r;
}
HWY_INLINE V16 add(V16 a, V16 b) {
  TESSERA_FOR_PARTS a.part[i] = hn::Add(a.part[i], b.part[i]);
  return a;
}
HWY_INLINE V16 sub(V16 a, V16 b) {
  TESSERA_FOR_PARTS a.part[i] = hn::Sub(a.part[i], b.part[i]);
  return a;
}
HWY_INLINE V16 mul(V16 a, V16 b) {
  TESSERA_FOR_PARTS a.part[i] = hn::Mul(a.part[i], b.part[i]);
  return a;
}
HWY_INLINE V16 div(V16 a, V16 b) {
  TESSERA_FOR_PARTS a.part[i] = hn::Div(a.part[i], b.part[i]);
  return a;
}
HWY_INLINE V16 sqrt(V16 a) {
  TESSERA_FOR_PARTS a.part[i] = hn::Sqrt(a.part[i]);
  return a;
}
HWY_INLINE V16 neg(V16 a) {
  TESSERA_FOR_PARTS a.part[i] = hn::Neg(a.part[i]);
  return a;
}
// -1 or 1; a zero or NaN is returned as it is.
HWY_INLINE V16 sign(V16 a) {
  const FloatTag d;
  TESSERA_FOR_PARTS a.part[i] = hn::IfThenElse(hn::Gt(hn::Abs(a.part[i]), hn::Zero(d)),
                                               hn::CopySign(hn::Set(d, 1.0f), a.part[i]), a.part[i]);
  return a;
}
// If a lane of b is NaN, the result is a or b, depending on the target. exp16 shows how to keep NaN.
HWY_INLINE V16 max(V16 a, V16 b) {
  TESSERA_FOR_PARTS a.part[i] = hn::Max(a.part[i], b.part[i]);
  return a;
}

// a * b + c, rounded once. Targets without the instruction call the C library's fma lane by lane, from one
// place.
#if HWY_NATIVE_FMA
template <class Vector>
HWY_INLINE Vector fused(Vector a, Vector b, Vector c) {
  return hn::MulAdd(a, b, c);
}
#else
template <class Vector>
HWY_NOINLINE Vector fused(Vector a, Vector b, Vector c) {
  const hn::DFromV<Vector> d;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  alignas(64) hn::TFromD<decltype(d)> x[kLanes], y[kLanes], z[kLanes];
  hn::Store(a, d, x);
  hn::Store(b, d, y);
  hn::Store(c, d, z);
  for (int lane = 0; lane < kLanes; ++lane) z[lane] = std::fma(x[lane], y[lane], z[lane]);
  return hn::Load(d, z);
}
#endif
HWY_INLINE V16 fma(V16 a, V16 b, V16 c) {
  TESSERA_FOR_PARTS a.part[i] = fused(a.part[i], b.part[i], c.part[i]);
  return a;
}

HWY_INLINE V16 load16(const float* p) {
  V16 r;
  TESSERA_FOR_PARTS r.part[i] = hn::LoadU(FloatTag(), p + i * kVectorLanes);
  return r;
}
HWY_INLINE void store16(V16 a, float* p) {
  TESSERA_FOR_PARTS hn::StoreU(a.part[i], FloatTag(), p + i * kVectorLanes);
}

// Loads 16-bit values into the low 16 bits of each lane, and stores them again.
HWY_INLINE IntVector load_halves(const std::uint16_t* p) {
  return hn::PromoteTo(IntTag(), hn::LoadU(HalfTag(), p));
}
HWY_INLINE void store_halves(IntVector halves, std::uint16_t* p) {
  hn::StoreU(hn::DemoteTo(HalfTag(), halves), HalfTag(), p);
}

HWY_INLINE V16 load16(const Bf16* p) {
  const auto* halves = reinterpret_cast<const std::uint16_t*>(p);
  V16 r;
  TESSERA_FOR_PARTS r.part[i] =
      hn::BitCast(FloatTag(), hn::ShiftLeft<16>(load_halves(halves + i * kVectorLanes)));
  return r;
}

HWY_INLINE V16 load16(const Fp16* p) {
  const IntTag d;
  const auto* halves = reinterpret_cast<const std::uint16_t*>(p);
  V16 r;
  TESSERA_FOR_PARTS {
    const IntVector bits = load_halves(halves + i * kVectorLanes);
    const IntVector sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(d, 0x8000)));
    const IntVector magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(d, 0x7fff)));
    const IntVector scaled =
        hn::BitCast(d, hn::Mul(hn::BitCast(FloatTag(), magnitude), hn::Set(FloatTag(), 0x1p112f)));
    const IntVector special = hn::Add(magnitude, hn::Set(d, 0x70000000));
    const IntVector value = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 0x0f7fffff)), special, scaled);
    r.part[i] = hn::BitCast(FloatTag(), hn::Or(sign, value));
  }
  return r;
}

// Like from_float<Bf16>, with the result in the upper half of each lane; the lower half is undefined.
HWY_INLINE IntVector bf16_words(FloatVector value) {
  const IntTag d;
  const IntVector bits = hn::BitCast(d, value);
  const auto odd = hn::TestBit(bits, hn::Set(d, 0x10000));
  IntVector rounded = hn::Add(bits, hn::Set(d, 0x7fff));
  if constexpr (kParts == 1)
    rounded = hn::IfThenElse(odd, hn::Add(rounded, hn::Set(d, 1)), rounded);  // a masked addition
  else
    rounded = hn::Sub(rounded, hn::VecFromMask(d, odd));
  return hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(value)), hn::Or(bits, hn::Set(d, 0x400000)), rounded);
}
HWY_INLINE IntVector bf16_bits(FloatVector value) {
  const hn::RebindToUnsigned<IntTag> du;
  return hn::BitCast(IntTag(), hn::ShiftRight<16>(hn::BitCast(du, bf16_words(value))));
}
HWY_INLINE void store16(V16 a, Bf16* p) {
  auto* halves = reinterpret_cast<std::uint16_t*>(p);
  TESSERA_FOR_PARTS store_halves(bf16_bits(a.part[i]), halves + i * kVectorLanes);
}

// Like from_float<Fp16>.
HWY_INLINE IntVector fp16_bits(FloatVector value) {
  const IntTag d;
  const FloatTag df;
  const hn::RebindToUnsigned<IntTag> du;
  const IntVector bits = hn::BitCast(d, value);
  const IntVector sign =
      hn::And(hn::BitCast(d, hn::ShiftRight<16>(hn::BitCast(du, bits))), hn::Set(d, 0x8000));
  const IntVector magnitude = hn::And(bits, hn::Set(d, 0x7fffffff));
  const IntVector subnormal =
      hn::Sub(hn::BitCast(d, hn::Add(hn::BitCast(df, magnitude), hn::Set(df, 0.5f))), hn::Set(d, 0x3f000000));
  const IntVector odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 1));
  const IntVector normal =
      hn::ShiftRight<13>(hn::Add(magnitude, hn::Add(odd, hn::Set(d, 0xfff - 0x38000000))));
  const IntVector nan = hn::Or(hn::Set(d, 0x7e00), hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 0x1ff)));
  IntVector half = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0x38800000)), subnormal, normal);
  half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 0x477fffff)), hn::Set(d, 0x7c00), half);
  half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 0x7f800000)), nan, half);
  return hn::Or(sign, half);
}
HWY_INLINE void store16(V16 a, Fp16* p) {
  auto* halves = reinterpret_cast<std::uint16_t*>(p);
  TESSERA_FOR_PARTS store_halves(fp16_bits(a.part[i]), halves + i * kVectorLanes);
}

// Store 16 or 32 elements past the caches. `p` is aligned to 64 bytes. Call hwy::FlushStream() after the last
// store. Whole vectors are stored, because hn::Stream stores at least 16 bytes.
HWY_INLINE void stream16(V16 a, float* p) {
  TESSERA_FOR_PARTS hn::Stream(a.part[i], FloatTag(), p + i * kVectorLanes);
}
template <class Halves>  // makes the 16-bit halves of two vectors of floats
HWY_INLINE void stream_pairs(V16 a, V16 b, std::uint16_t* p, const Halves& halves_of) {
  const hn::Repartition<std::uint16_t, IntTag> d;
  if constexpr (kParts == 1) {
    hn::Stream(halves_of(a.part[0], b.part[0]), d, p);
  } else {
    for (const V16& each : {a, b})
      for (int i = 0; i < kParts; i += 2, p += 2 * kVectorLanes)
        hn::Stream(halves_of(each.part[i], each.part[i + 1]), d, p);
  }
}
HWY_INLINE void stream32(V16 a, V16 b, Bf16* p) {
  const hn::Repartition<std::uint16_t, IntTag> d;
  stream_pairs(a, b, reinterpret_cast<std::uint16_t*>(p), [&](FloatVector low, FloatVector high) {
    return hn::ConcatOdd(d, hn::BitCast(d, bf16_words(high)), hn::BitCast(d, bf16_words(low)));
  });
}
HWY_INLINE void stream32(V16 a, V16 b, Fp16* p) {
  const hn::Repartition<std::uint16_t, IntTag> d;
  stream_pairs(a, b, reinterpret_cast<std::uint16_t*>(p), [&](FloatVector low, FloatVector high) {
    return hn::ConcatEven(d, hn::BitCast(d, fp16_bits(high)), hn::BitCast(d, fp16_bits(low)));
  });
}

// The slow variants. Not inlined, so that they do not make every loop larger.
template <class T>
HWY_NOINLINE V16 load_tail(const T* p, std::int64_t count) {
  T buffer[16] = {};
  std::memcpy(buffer, p, static_cast<std::size_t>(count) * sizeof(T));
  return load16(buffer);
}
template <class T>
HWY_NOINLINE void store_tail(V16 a, T* p, std::int64_t count) {
  T buffer[16];
  store16(a, buffer);
  std::memcpy(p, buffer, static_cast<std::size_t>(count) * sizeof(T));
}
HWY_MAYBE_UNUSED static HWY_NOINLINE V16 fill_tail(V16 a, std::int64_t count, float value) {
  float buffer[16];
  store16(a, buffer);
  for (std::int64_t lane = count; lane < 16; ++lane) buffer[lane] = value;
  return load16(buffer);
}

// Load and store the first `count` (1 to 16) lanes. The others load as 0 and are not stored.
template <class T>
HWY_INLINE V16 load_some(const T* p, std::int64_t count) {
  return HWY_LIKELY(count >= 16) ? load16(p) : load_tail(p, count);
}
template <class T>
HWY_INLINE void store_some(V16 a, T* p, std::int64_t count) {
  if (HWY_LIKELY(count >= 16)) return store16(a, p);
  store_tail(a, p, count);
}

// Replaces the lanes from `count` on by `value`.
HWY_INLINE V16 fill_lanes_from(V16 a, std::int64_t count, float value) {
  return HWY_LIKELY(count >= 16) ? a : fill_tail(a, count, value);
}

// Folds all lanes pairwise: those 8 apart, then 4, 2 and 1.
template <class D, class Operation>
HWY_INLINE float fold_vector(D, hn::Vec<D> v, const Operation& operation) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    return hn::GetLane(v);
  } else {
    const hn::Half<D> half;
    return fold_vector(half, operation(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), operation);
  }
}
template <class Operation>
HWY_INLINE float fold_lanes(V16 a, const Operation& operation) {
  for (int width = kParts / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) a.part[i] = operation(a.part[i], a.part[i + width]);
  return fold_vector(FloatTag(), a.part[0], operation);
}
HWY_INLINE float sum_lanes(V16 a) {
  return fold_lanes(a, [](auto low, auto high) { return hn::Add(low, high); });
}
HWY_INLINE float max_lanes(V16 a) {
  return fold_lanes(a, [](auto low, auto high) { return hn::Max(low, high); });
}

// p * 2^n for integers n from -151 to 128 and p from 0.7 to 1.5, rounded once.
HWY_INLINE FloatVector scale_by_power(FloatVector p, FloatVector n, IntVector exponent) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  (void)exponent;
  return FloatVector{_mm512_scalef_ps(p.raw, n.raw)};
#else  // in two steps, so that neither step over- or underflows early
  (void)n;
  const FloatTag d;
  const IntTag di;
  const IntVector half = hn::ShiftRight<1>(exponent);
  const IntVector bias = hn::Set(di, 127);
  const FloatVector scale1 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const FloatVector scale2 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(exponent, half), bias)));
  return hn::Mul(hn::Mul(p, scale1), scale2);
#endif
}

// e^x to 2 ulp: e^r by its Taylor polynomial to r^7 on |r| <= ln(2)/2, scaled by 2^n. NaN stays NaN.
HWY_INLINE FloatVector exp_vector(FloatVector x) {
  const FloatTag d;
  const IntTag di;
  const FloatVector magic = hn::Set(d, 0x1.8p23f);  // adding it rounds to an integer, held in the low bits
  const FloatVector clamped = hn::Min(hn::Max(x, hn::Set(d, -105.0f)), hn::Set(d, 89.0f));
  const FloatVector shifted = fused(clamped, hn::Set(d, 0x1.715476p0f), magic);  // log2(e)
  const FloatVector n = hn::Sub(shifted, magic);
  FloatVector r = fused(n, hn::Set(d, -0x1.62e4p-1f), clamped);  // ln 2, high part
  r = fused(n, hn::Set(d, -0x1.7f7d1cp-20f), r);                 // ln 2, low part
  FloatVector p = hn::Set(d, 1.0f / 5040.0f);
  p = fused(p, r, hn::Set(d, 1.0f / 720.0f));
  p = fused(p, r, hn::Set(d, 1.0f / 120.0f));
  p = fused(p, r, hn::Set(d, 1.0f / 24.0f));
  p = fused(p, r, hn::Set(d, 1.0f / 6.0f));
  p = fused(p, r, hn::Set(d, 0.5f));
  p = fused(p, r, hn::Set(d, 1.0f));
  p = fused(p, r, hn::Set(d, 1.0f));
  const IntVector exponent = hn::Sub(hn::BitCast(di, shifted), hn::Set(di, 0x4b400000));
  const FloatVector result = scale_by_power(p, n, exponent);
  return hn::IfThenElse(hn::Eq(x, x), result, x);
}
HWY_INLINE V16 exp16(V16 a) {
  TESSERA_FOR_PARTS a.part[i] = exp_vector(a.part[i]);
  return a;
}

// Like reciprocal_element (exp_math.h).
HWY_INLINE V16 reciprocal16(V16 a) {
  const FloatTag d;
  TESSERA_FOR_PARTS {
    const FloatVector quotient = hn::Div(hn::Set(d, 1.0f), a.part[i]);
    a.part[i] = hn::IfThenZeroElse(hn::Ge(a.part[i], hn::Set(d, 0x1p126f)), quotient);
  }
  return a;
}

#undef TESSERA_FOR_PARTS

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
