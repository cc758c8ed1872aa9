// How moments that are kept in bf16 are rounded. Rounding to the nearest would lose small additions at every
// step, such as the 0.001 (g² − v) that Adam adds with beta2 = 0.999. So a moment is rounded at random, up
// with the probability that keeps its expectation, and nothing is lost on average (Gupta et al. 2015). The
// random bits are a function of counters, so that each element is rounded in the same way on any backend and
// with any cut of a shard.
#pragma once

#include <cstdint>

#include "kernels/float_types.h"
#include "kernels/host_device.h"
#include "kernels/philox_math.h"

namespace tessera::kernels {

struct MomentRounding {
  std::uint64_t key = 0;   // of a flat and a step; all 64 bits are used and should be random
  std::int64_t first = 0;  // index in the flat of the call's first element
};

// The key of a flat and a step, from 1: every step rounds anew. As random_key() of tessera/philox.h.
TESSERA_HOST_DEVICE inline std::uint64_t rounding_key(std::uint64_t flat, std::int64_t step) {
  constexpr std::uint64_t kStream = 0x726F756E64;  // "round"
  return key_of(flat, kStream, static_cast<std::uint64_t>(step));
}

// Multipliers and shifts of triple32, a hash that Wellons found by search (Prospecting for Hash Functions,
// 2018). The key is mixed in before the first and before the second multiplication. It is less work than
// Philox, and enough: these bits only have to be evenly distributed.
inline constexpr std::uint32_t kRoundingMultiply0 = 0xed5ad4bbu, kRoundingMultiply1 = 0xac4c1b51u,
                               kRoundingMultiply2 = 0x31848babu;
inline constexpr int kRoundingShift0 = 17, kRoundingShift1 = 11, kRoundingShift2 = 15, kRoundingShift3 = 14;

// The value that is added before the second multiplication. It is the same for 2^32 consecutive elements.
TESSERA_HOST_DEVICE inline std::uint32_t rounding_addend(const MomentRounding& rounding,
                                                         std::int64_t element) {
  const auto above = static_cast<std::uint32_t>(static_cast<std::uint64_t>(element) >> 32);
  return static_cast<std::uint32_t>(rounding.key >> 32) + above * 0x9e3779b9u;
}

// The random bits of element i of the call. The lower half is for the first moment, the upper half for the
// second.
TESSERA_HOST_DEVICE inline std::uint32_t rounding_word(const MomentRounding& rounding, std::int64_t i) {
  const std::int64_t element = rounding.first + i;
  std::uint32_t x = static_cast<std::uint32_t>(element) ^ static_cast<std::uint32_t>(rounding.key);
  x = (x ^ x >> kRoundingShift0) * kRoundingMultiply0;
  x = ((x ^ x >> kRoundingShift1) + rounding_addend(rounding, element)) * kRoundingMultiply1;
  x = (x ^ x >> kRoundingShift2) * kRoundingMultiply2;
  return x ^ x >> kRoundingShift3;
}

// Rounds x to one of the two bf16 values around it, by the 16 bits of `random`. A bf16 value stays as it is;
// NaN stays NaN.
TESSERA_HOST_DEVICE inline float round_moment(float x, std::uint32_t random) {
  const auto bits = bits_as<std::uint32_t>(x);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return bits_as<float>((nan ? bits | 0x400000u : bits + random) & 0xffff0000u);
}

}  // namespace tessera::kernels
