#include "src/comm/ordered_chain.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace tessera::comm {
namespace {

// A block of sums stays in the first-level cache while the contributions stream by. Each is read before the
// block is written, which is what lets one of them be the result.
constexpr std::int64_t kBlock = 1024;

float widen_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

float widen_fp16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1Fu, mantissa = bits & 0x3FFu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal in fp16, exact in fp32
  return sign ? -magnitude : magnitude;
}

struct Fp32 {
  using Stored = float;
  static float widen(float value) { return value; }
};
struct Bf16 {
  using Stored = std::uint16_t;
  static float widen(std::uint16_t bits) { return widen_bf16(bits); }
};
struct Fp16 {
  using Stored = std::uint16_t;
  static float widen(std::uint16_t bits) { return widen_fp16(bits); }
};
struct Fp64 {
  using Stored = double;
  static double widen(double value) { return value; }
};

template <class Type, class Sum>
void chain(std::span<const void* const> contributions, std::int64_t numel, bool accumulate, Sum* result) {
  std::array<Sum, kBlock> sums;
  for (std::int64_t begin = 0; begin < numel; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, numel - begin);
    if (accumulate) std::copy_n(result + begin, count, sums.data());
    bool first = !accumulate;
    for (const void* contribution : contributions) {
      const auto* values = static_cast<const typename Type::Stored*>(contribution) + begin;
      if (first)
        for (std::int64_t i = 0; i < count; ++i) sums[static_cast<std::size_t>(i)] = Type::widen(values[i]);
      else
        for (std::int64_t i = 0; i < count; ++i) sums[static_cast<std::size_t>(i)] += Type::widen(values[i]);
      first = false;
    }
    std::copy_n(sums.data(), count, result + begin);
  }
}

}  // namespace

void ordered_chain(std::span<const void* const> contributions, DType type, std::int64_t numel,
                   bool accumulate, float* result) {
  switch (type) {
    case DType::fp32:
      return chain<Fp32>(contributions, numel, accumulate, result);
    case DType::bf16:
      return chain<Bf16>(contributions, numel, accumulate, result);
    case DType::fp16:
      return chain<Fp16>(contributions, numel, accumulate, result);
  }
}

void ordered_chain(std::span<const void* const> contributions, std::int64_t numel, double* result) {
  chain<Fp64>(contributions, numel, false, result);
}

}  // namespace tessera::comm
