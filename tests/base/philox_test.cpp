#include "tessera/philox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>
#include <vector>

namespace tessera {
namespace {

// The known answers that the authors of Philox publish with their library (philox4x32, 10 rounds).
static_assert(philox({0, 0}, {0, 0, 0, 0}) == PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
static_assert(philox({0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}) ==
              PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
static_assert(philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}) ==
              PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});

TEST(philox, keyed_block_uses_every_bit_of_seed_stream_and_index) {
  const PhiloxBlock block = random_block(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88);
  EXPECT_EQ(block, (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(philox, uniform_stays_inside_the_open_interval) {
  const auto lowest = uniform_pair({0, 0, 0, 0});
  const auto highest = uniform_pair({~0U, ~0U, ~0U, ~0U});
  EXPECT_EQ(lowest[0], 0x1p-53);
  EXPECT_EQ(highest[1], 1.0 - 0x1p-53);
  EXPECT_LT(highest[0], 1.0);
}

TEST(philox, uniform_is_spread_evenly) {
  constexpr int kBins = 16, kDraws = 64000;
  std::vector<int> bins(kBins);
  for (int i = 0; i < kDraws; ++i) ++bins[static_cast<std::size_t>(uniform(1, 2, i) * kBins)];
  double chi_squared = 0;
  for (int count : bins) chi_squared += std::pow(count - kDraws / kBins, 2) / (kDraws / kBins);
  EXPECT_LT(chi_squared, 37.7);  // 15 degrees of freedom, p = 0.001
}

TEST(philox, normal_has_the_moments_of_a_normal) {
  constexpr int kDraws = 100000;
  double sums[4] = {};
  for (int i = 0; i < kDraws; ++i) {
    const double x = normal(7, 3, i);
    for (double& sum : sums) sum += std::pow(x, &sum - sums + 1);
  }
  EXPECT_NEAR(sums[0] / kDraws, 0.0, 4 * std::sqrt(1.0 / kDraws));
  EXPECT_NEAR(sums[1] / kDraws, 1.0, 4 * std::sqrt(2.0 / kDraws));
  EXPECT_NEAR(sums[2] / kDraws, 0.0, 4 * std::sqrt(15.0 / kDraws));
  EXPECT_NEAR(sums[3] / kDraws, 3.0, 4 * std::sqrt(96.0 / kDraws));
}

TEST(philox, normal_is_made_of_a_logarithm_and_a_direction) {
  const auto check_log = [](double a) {
    const long double expected = std::log(static_cast<long double>(a));
    EXPECT_NEAR(normal_math::log_below_1(a) / expected, 1.0L, 2 * 0x1p-52L) << std::hexfloat << a;
  };
  const auto check_direction = [](double b) {
    const long double angle = 2 * std::numbers::pi_v<long double> * b;
    const auto [cosine, sine] = normal_math::direction(b);
    EXPECT_NEAR(cosine, std::cos(angle), 2 * 0x1p-52L) << std::hexfloat << b;
    EXPECT_NEAR(sine, std::sin(angle), 2 * 0x1p-52L) << std::hexfloat << b;
  };
  for (const double a :
       {0x1p-53, 0x1p-52, 0.25, 0.5, 0.7071067811865475, 0.7071067811865476, 0.75, 1 - 0x1p-53})
    check_log(a), check_direction(a);
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const double u = uniform(3, 1, i);
    check_log(u);
    check_log(std::ldexp(u, -static_cast<int>(i % 50)));
    check_log(1 - std::ldexp(0.5 + u / 2, -static_cast<int>(i % 50) - 1));
    check_direction(u);
  }
}

// Not of a processor's, a compiler's or a C library's own making: every model begins with them.
TEST(philox, normal_has_the_same_bits_everywhere) {
  EXPECT_EQ(normal(1, 2, 0), 0x1.0f42691aa2288p+0);
  EXPECT_EQ(normal(1, 2, 1), 0x1.1100d6b43fd82p-2);
  EXPECT_EQ(normal(3, 4, 123456789), 0x1.39d5976036ce3p+0);
  EXPECT_EQ(normal(0xffffffffffffffff, 1, 0xffffffffff), -0x1.c5e6faca9dcc6p-3);
}

TEST(philox, normal_takes_both_halves_of_a_pair) {
  for (std::uint64_t i = 0; i < 10; ++i) {
    const auto pair = normal_pair(11, 5, i);
    EXPECT_EQ(normal(11, 5, 2 * i), pair[0]);
    EXPECT_EQ(normal(11, 5, 2 * i + 1), pair[1]);
  }
}

TEST(philox, streams_and_seeds_differ) {
  std::set<double> values;
  for (std::uint64_t seed = 0; seed < 10; ++seed)
    for (std::uint64_t stream = 0; stream < 10; ++stream)
      for (std::uint64_t index = 0; index < 10; ++index) values.insert(uniform(seed, stream, index));
  EXPECT_EQ(values.size(), 1000U);
}

TEST(permute, is_a_bijection_for_every_small_n) {
  for (std::uint64_t n = 1; n <= 300; ++n) {
    std::vector<bool> seen(n);
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::uint64_t place = permute(i, n, 42, n);
      ASSERT_LT(place, n);
      ASSERT_FALSE(seen[place]) << "n = " << n << ", index " << i;
      seen[place] = true;
    }
  }
}

TEST(permute, epochs_and_seeds_shuffle_differently) {
  constexpr std::uint64_t kN = 1000;
  const auto equal_places = [](std::uint64_t seed_a, std::uint64_t epoch_a, std::uint64_t seed_b,
                               std::uint64_t epoch_b) {
    int equal = 0;
    for (std::uint64_t i = 0; i < kN; ++i)
      equal += permute(i, kN, seed_a, epoch_a) == permute(i, kN, seed_b, epoch_b);
    return equal;
  };
  // Two random permutations agree in about one place; ten would happen once in ten million.
  EXPECT_LT(equal_places(1, 0, 1, 1), 10);
  EXPECT_LT(equal_places(1, 0, 2, 0), 10);
  EXPECT_EQ(equal_places(1, 5, 1, 5), static_cast<int>(kN));
}

TEST(permute, leaves_no_order) {
  // The sum of |permute(i) − permute(i + 1)| of a random permutation is n²/3 on average.
  constexpr std::uint64_t kN = 4096;
  double sum = 0;
  for (std::uint64_t i = 0; i + 1 < kN; ++i)
    sum +=
        std::abs(static_cast<double>(permute(i, kN, 9, 0)) - static_cast<double>(permute(i + 1, kN, 9, 0)));
  EXPECT_NEAR(sum / (kN * kN / 3.0), 1.0, 0.05);
}

TEST(permute, first_place_is_uniform_over_epochs) {
  constexpr int kEpochs = 6000, kN = 6;
  std::vector<int> bins(kN);
  for (int epoch = 0; epoch < kEpochs; ++epoch) ++bins[permute(0, kN, 3, epoch)];
  for (int count : bins) EXPECT_NEAR(count, kEpochs / kN, 5 * std::sqrt(kEpochs / kN));
}

TEST(permute, works_up_to_the_largest_n) {
  constexpr std::uint64_t kLargest = ~std::uint64_t{0};
  std::set<std::uint64_t> places;
  for (std::uint64_t i = 0; i < 100; ++i) places.insert(permute(kLargest - 1 - i, kLargest, 1, 1));
  EXPECT_EQ(places.size(), 100U);
  EXPECT_GT(*places.rbegin(), kLargest / 2);
}

TEST(permute, refuses_an_index_out_of_range) {
  EXPECT_THROW(permute(5, 5, 0, 0), UsageError);
  EXPECT_THROW(permute(0, 0, 0, 0), UsageError);
  static_assert(permute(0, 1, 0, 0) == 0);
}

}  // namespace
}  // namespace tessera
