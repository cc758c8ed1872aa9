// The 16-bit float types, and conversions of one element. Every backend, the vector code and the tests use
// these.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"

namespace tessera::kernels {

// std::bit_cast for device code, which cannot call that.
template <class To, class From>
TESSERA_HOST_DEVICE constexpr To bits_as(From from) {
  return __builtin_bit_cast(To, from);
}

struct Bf16 {
  std::uint16_t bits = 0;
};
struct Fp16 {
  std::uint16_t bits = 0;
};

TESSERA_HOST_DEVICE constexpr float to_float(float value) { return value; }

TESSERA_HOST_DEVICE constexpr float to_float(Bf16 value) {
  return bits_as<float>(std::uint32_t{value.bits} << 16);
}

TESSERA_HOST_DEVICE constexpr float to_float(Fp16 value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = (value.bits & 0x7fffu) << 13;
  if (magnitude >= 0x0f800000u)  // infinity or NaN
    return bits_as<float>(sign | (magnitude + 0x70000000u));
  // Multiplying by 2^112 changes the exponent's bias from 15 to 127 and normalizes subnormals. It is exact.
  const float scaled = bits_as<float>(magnitude) * 0x1p112f;
  return bits_as<float>(sign | bits_as<std::uint32_t>(scaled));
}

// Rounds to nearest, ties to even. Overflow gives infinity. NaN stays NaN: it is made quiet, and its sign and
// upper bits are kept.
template <class T>
TESSERA_HOST_DEVICE constexpr T from_float(float value);

template <>
TESSERA_HOST_DEVICE constexpr float from_float<float>(float value) {
  return value;
}

template <>
TESSERA_HOST_DEVICE constexpr Bf16 from_float<Bf16>(float value) {
  const std::uint32_t bits = bits_as<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

template <>
TESSERA_HOST_DEVICE constexpr Fp16 from_float<Fp16>(float value) {
  const std::uint32_t bits = bits_as<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
  } else if (magnitude >= 0x47800000u) {  // 2^16 and above
    half = 0x7c00u;
  } else if (magnitude <
             0x38800000u) {  // below 2^-14: adding 1/2 lets the addition round at the last subnormal bit
    half = bits_as<std::uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return {static_cast<std::uint16_t>(sign | half)};
}

}  // namespace tessera::kernels
