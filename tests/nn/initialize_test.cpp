#include "src/nn/initialize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "tessera/error.h"

namespace tessera {
namespace {

std::vector<float> values(const Initial& initial, std::uint64_t seed, std::string_view name,
                          std::int64_t begin, std::size_t numel) {
  std::vector<float> out(numel, std::numeric_limits<float>::quiet_NaN());
  initial_values(initial, seed, name, begin, out);
  return out;
}

constexpr Initial kNormal = {Initial::Kind::normal, 0.02};
constexpr Initial kUniform = {Initial::Kind::uniform, 0.5};

TEST(InitialValues, DoNotDependOnHowTheRangeIsCut) {
  for (const Initial& initial : {kNormal, kUniform, Initial{Initial::Kind::constant, 1.0}}) {
    const std::vector<float> whole = values(initial, 5, "embed.token", 0, 1000);
    for (const std::int64_t piece : {1, 2, 3, 7, 64, 999}) {
      for (std::int64_t begin = 0; begin < 1000; begin += piece) {
        const auto numel = static_cast<std::size_t>(std::min<std::int64_t>(piece, 1000 - begin));
        const std::vector<float> part = values(initial, 5, "embed.token", begin, numel);
        ASSERT_EQ(std::memcmp(part.data(), whole.data() + begin, numel * sizeof(float)), 0)
            << "pieces of " << piece << " at " << begin;
      }
    }
  }
}

TEST(InitialValues, DifferBySeedAndName) {
  const std::vector<float> one = values(kNormal, 5, "a", 0, 100);
  EXPECT_EQ(one, values(kNormal, 5, "a", 0, 100));
  EXPECT_NE(one, values(kNormal, 6, "a", 0, 100));
  EXPECT_NE(one, values(kNormal, 5, "b", 0, 100));
  EXPECT_NE(one, values(kNormal, 5, "a", 100, 100));
}

// Bounds at five standard errors: the draw is fixed, so this cannot fail by chance.
TEST(InitialValues, NormalHasItsMoments) {
  const std::size_t numel = 100000;
  const std::vector<float> drawn = values(kNormal, 1, "w", 0, numel);
  const double mean = std::accumulate(drawn.begin(), drawn.end(), 0.0) / numel;
  double squares = 0.0, fourths = 0.0;
  for (float value : drawn) {
    squares += std::pow(value / 0.02, 2) / numel;
    fourths += std::pow(value / 0.02, 4) / numel;
  }
  EXPECT_NEAR(mean / 0.02, 0.0, 5.0 / std::sqrt(numel));
  EXPECT_NEAR(squares, 1.0, 5.0 * std::sqrt(2.0 / numel));
  EXPECT_NEAR(fourths, 3.0, 5.0 * std::sqrt(96.0 / numel));
}

TEST(InitialValues, UniformFillsItsInterval) {
  const std::vector<float> drawn = values(kUniform, 1, "w", 0, 100000);
  const auto [least, most] = std::minmax_element(drawn.begin(), drawn.end());
  EXPECT_GE(*least, -0.5f);
  EXPECT_LE(*most, 0.5f);
  EXPECT_LT(*least, -0.499f);
  EXPECT_GT(*most, 0.499f);
  EXPECT_NEAR(std::accumulate(drawn.begin(), drawn.end(), 0.0) / 1e5, 0.0, 5.0 * 0.2887 / std::sqrt(1e5));
}

TEST(InitialValues, ConstantAndEmpty) {
  EXPECT_EQ(values({Initial::Kind::constant, -2.5}, 1, "w", 3, 4), std::vector<float>(4, -2.5f));
  EXPECT_TRUE(values(kNormal, 1, "w", 3, 0).empty());
}

TEST(InitialValues, RefuseWhatMeansNothing) {
  EXPECT_THROW(values(kNormal, 1, "w", -1, 1), UsageError);
  EXPECT_THROW(values({Initial::Kind::normal, -0.1}, 1, "w", 0, 1), UsageError);
  EXPECT_THROW(values({Initial::Kind::uniform, std::nan("")}, 1, "w", 0, 1), UsageError);
}

}  // namespace
}  // namespace tessera
