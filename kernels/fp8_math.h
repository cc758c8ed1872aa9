// The 8-bit float e4m3 and the scales of its tiles, for one element and one tile. Every backend, the vector
// code and the tests use these.
//
// e4m3 is that of OCP's "8-bit Floating Point Specification" (OFP8, 2023): a sign, four bits of exponent with
// bias 7, three of mantissa. There is no infinity. The largest number is 448, the smallest above zero 2^-9,
// and NaN is 0x7f or 0xff.
#pragma once

#include <cstdint>

#include "kernels/float_types.h"
#include "kernels/host_device.h"

namespace tessera::kernels {

struct E4m3 {
  std::uint8_t bits = 0;
};

inline constexpr std::uint8_t kE4m3Nan = 0x7f;

// Exact. NaN stays NaN.
TESSERA_HOST_DEVICE constexpr float to_float(E4m3 value) {
  const std::uint32_t sign = (value.bits & 0x80u) << 24;
  const std::uint32_t magnitude = value.bits & 0x7fu;
  if (magnitude == kE4m3Nan) return bits_as<float>(sign | 0x7fc00000u);
  if (magnitude < 8)  // subnormal: units of 2^-9
    return bits_as<float>(sign | bits_as<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-9f));
  return bits_as<float>(sign | ((magnitude << 20) + 0x3c000000u));
}

// Rounds to nearest, ties to even. What lies beyond 448, infinity included, becomes 448 of its sign. NaN
// becomes kE4m3Nan, whatever its sign.
TESSERA_HOST_DEVICE constexpr E4m3 e4m3_of(float value) {
  const std::uint32_t bits = bits_as<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {kE4m3Nan};
  std::uint32_t code = 0;
  if (magnitude < 0x3c800000u) {
    // Below 2^-6 adding 2^14 lets the addition round at 2^-9, the unit of subnormals.
    code = bits_as<std::uint32_t>(bits_as<float>(magnitude) + 0x1p14f) - 0x46800000u;
  } else {
    code = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - 0x3c0u;
    code = code < 0x7eu ? code : 0x7eu;
  }
  return {static_cast<std::uint8_t>(code | ((bits >> 24) & 0x80u))};
}

// Rows and columns of a square tile, and the elements of a tile within a row.
inline constexpr int kFp8Tile = 128;

// What a tile's elements are divided by, and the reciprocal of that. Both are powers of two.
struct TileScale {
  float scale = 1.0f;
  float inverse = 1.0f;
};

// `largest` has the bits of the largest magnitude of a tile's bf16 elements, compared as integers. The scale
// is the smallest power of two, from 2^-117 on, by which no element exceeds 448. So an element times the
// scale is exactly a bf16 number again, and a normal one. Where an element is infinite or NaN, all elements
// of the tile become NaN: the inverse is NaN and the scale 1.
TESSERA_HOST_DEVICE constexpr TileScale tile_scale(std::uint32_t largest) {
  if (largest >= 0x7f80u) return {1.0f, bits_as<float>(0x7fc00000u)};
  // 448 is 1.75 times 2^8: a mantissa above 1.75 needs the next power.
  const std::uint32_t above = (largest + 0x1fu) >> 7;
  const std::uint32_t exponent = above > 18 ? above - 8 : 10;  // biased, as fp32 has it
  return {bits_as<float>(exponent << 23), bits_as<float>((254 - exponent) << 23)};
}

// An element of a tile that has such a scale.
TESSERA_HOST_DEVICE constexpr E4m3 quantized(Bf16 element, const TileScale& scale) {
  return e4m3_of(to_float(element) * scale.inverse);
}

}  // namespace tessera::kernels
