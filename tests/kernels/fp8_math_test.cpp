// The rounding to e4m3 and the scales of tiles against rules in float64: for every bf16 number, which is all
// that is ever rounded, and for many more.
#include "kernels/fp8_math.h"

#include "tests/kernels/fp8_reference.h"

namespace tessera::kernels::testing {
namespace {

Bf16 bf16(std::uint32_t bits) { return {static_cast<std::uint16_t>(bits)}; }

TEST(E4m3, EveryCodeIsItsNumberAndRoundsToItself) {
  for (int bits = 0; bits < 256; ++bits) {
    const E4m3 code = {static_cast<std::uint8_t>(bits)};
    const float value = to_float(code);
    if ((bits & 0x7f) == kE4m3Nan) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(e4m3_of(value).bits, kE4m3Nan);
      continue;
    }
    EXPECT_EQ(std::abs(static_cast<double>(value)), e4m3_magnitude(bits & 0x7f));
    EXPECT_EQ(std::signbit(value), bits >= 0x80);
    EXPECT_EQ(e4m3_of(value).bits, bits);
  }
}

void expect_nearest(float value) {
  const int nearest = nearest_e4m3(static_cast<double>(value));
  ASSERT_EQ(e4m3_of(value).bits, nearest < 0 ? kE4m3Nan : nearest) << value;
}

TEST(E4m3, RoundsEveryBf16Number) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) expect_nearest(to_float(bf16(bits)));
}

// Two thousand numbers of fp32 around each code and each middle of two, of either sign.
TEST(E4m3, RoundsAroundEveryCodeAndEveryTie) {
  for (int code = 0; code < 0x7e; ++code)
    for (const double at : {e4m3_magnitude(code), (e4m3_magnitude(code) + e4m3_magnitude(code + 1)) / 2})
      for (const std::uint32_t sign : {0u, 0x80000000u}) {
        const auto middle = std::bit_cast<std::uint32_t>(static_cast<float>(at));
        for (std::uint32_t bits = middle < 1000 ? 0 : middle - 1000; bits <= middle + 1000; ++bits)
          expect_nearest(std::bit_cast<float>(bits | sign));
      }
}

TEST(E4m3, RoundsNumbersOfEveryMagnitude) {
  for (std::uint64_t bits = 0; bits < 0x100000000; bits += 4001)
    expect_nearest(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  for (const float beyond : {448.0f, 464.0f, 480.0f, 1e30f, std::numeric_limits<float>::infinity()})
    EXPECT_EQ(e4m3_of(-beyond).bits, 0xfe);
}

TEST(TileScale, IsTheLeastPowerOfTwoForEveryLargestMagnitude) {
  for (std::uint32_t largest = 0; largest < 0x7f80; ++largest) {
    const TileScale scale = tile_scale(largest);
    const auto value = static_cast<double>(to_float(bf16(largest)));
    ASSERT_EQ(static_cast<double>(scale.scale), scale_of_tile(value)) << value;
    ASSERT_EQ(scale.scale * scale.inverse, 1.0f);
  }
  for (std::uint32_t largest = 0x7f80; largest < 0x8000; ++largest) {
    ASSERT_EQ(tile_scale(largest).scale, 1.0f);
    ASSERT_EQ(quantized(bf16(0x3f80), tile_scale(largest)).bits, kE4m3Nan);
  }
}

// What the CPU's product relies on.
TEST(TileScale, TimesAValueIsANormalBf16Number) {
  for (std::uint32_t largest = 0; largest < 0x7f80; largest += 16)
    for (int code = 0; code < 0x7f; ++code) {
      const float scale = tile_scale(largest).scale, value = to_float(E4m3{static_cast<std::uint8_t>(code)});
      const float product = value * scale;
      if (!std::isfinite(product)) continue;  // a value that no element of this tile has
      ASSERT_EQ(static_cast<double>(product), static_cast<double>(value) * static_cast<double>(scale));
      ASSERT_EQ(to_float(from_float<Bf16>(product)), product);
      ASSERT_TRUE(product == 0.0f || std::isnormal(product));
    }
}

}  // namespace
}  // namespace tessera::kernels::testing
