// sample_token(): how often each token is drawn, at any temperature, and what each draw is of.
#include "src/trainer/sample_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "tessera/error.h"
#include "tests/refusal.h"

namespace tessera {
namespace {

using Logits = std::vector<float>;

constexpr int kDraws = 50'000;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// softmax(logits / temperature).
std::vector<double> shares_of(const Logits& logits, double temperature) {
  std::vector<double> shares;
  double total = 0;
  for (const float logit : logits) total += shares.emplace_back(std::exp(double{logit} / temperature));
  for (double& share : shares) share /= total;
  return shares;
}

// Draws that are independent are this near the share of each token, four deviations. The seeds are fixed:
// what holds once holds always.
void expect_shares(const Logits& logits, double temperature, const std::function<std::int32_t(int)>& draw) {
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) ++counts.at(static_cast<std::size_t>(draw(i)));
  const std::vector<double> shares = shares_of(logits, temperature);
  for (std::size_t token = 0; token < logits.size(); ++token) {
    const double deviation = std::sqrt(kDraws * shares[token] * (1 - shares[token]));
    EXPECT_NEAR(counts[token], kDraws * shares[token], 4 * deviation)
        << "token " << token << " at temperature " << temperature;
  }
}

const Logits kLogits = {0.5f, -kInfinity, 2.0f, -1.0f, 0.5f, 1.25f, -kInfinity};

TEST(SampleToken, DrawsEachAsOftenAsTheTemperatureSays) {
  for (const double temperature : {0.4, 1.0, 3.0})
    expect_shares(kLogits, temperature, [&](int i) {
      return sample_token(kLogits, {.temperature = temperature, .seed = 11}, static_cast<std::uint64_t>(i));
    });
}

// Rare ones, too, wherever they stand: at the ends a draw that is a little off would miss them.
TEST(SampleToken, DrawsRareTokens) {
  for (const Logits& logits : {Logits{-7, 0}, Logits{0, -7}, Logits{-7, 0, -7}})
    expect_shares(logits, 1.0, [&](int i) {
      return sample_token(logits, {.temperature = 1.0, .seed = 5}, static_cast<std::uint64_t>(i));
    });
}

TEST(SampleToken, SeedsDrawApart) {
  for (const std::uint64_t index : {0, 1, 17})
    expect_shares(kLogits, 1.0, [&](int i) {
      return sample_token(kLogits, {.temperature = 1.0, .seed = static_cast<std::uint64_t>(i)}, index);
    });
}

// A pair of draws that follow each other is as frequent as its tokens make it.
TEST(SampleToken, DrawsOfATextAreIndependent) {
  const Logits even = {0, 0};
  const auto drawn = [&](std::uint64_t index) {
    return sample_token(even, {.temperature = 1.0, .seed = 3}, index);
  };
  expect_shares({0, 0, 0, 0}, 1.0, [&](int i) {
    const auto index = static_cast<std::uint64_t>(i) * 2;
    return drawn(index) * 2 + drawn(index + 1);
  });
}

TEST(SampleToken, NeverDrawsWhatHasNoWeight) {
  for (int i = 0; i < kDraws; ++i) {
    // Of the first so much is left out that it underflows.
    const Logits logits = {-1000, -kInfinity, 3, -kInfinity, 3, -1000};
    const std::int32_t token =
        sample_token(logits, {.temperature = 1.0, .seed = 2}, static_cast<std::uint64_t>(i));
    EXPECT_TRUE(token == 2 || token == 4) << token;
  }
}

TEST(SampleToken, TakesTheFirstOfTheLikeliestWithoutTemperature) {
  for (std::uint64_t index = 0; index < 20; ++index) {
    EXPECT_EQ(sample_token(kLogits, {.temperature = 0.0, .seed = index}, index), 2);
    EXPECT_EQ(sample_token(Logits{1, 4, -kInfinity, 4}, {.temperature = 0.0}, index), 1);
  }
}

// What is left behind the first tokens is drawn as often as among themselves.
TEST(SampleToken, DrawsFromTheFirstTokens) {
  const auto expect_first = [](const Sampling& sampling, const std::vector<std::size_t>& tokens) {
    Logits left(kLogits.size(), -kInfinity);
    for (const std::size_t token : tokens) left[token] = kLogits[token];
    expect_shares(left, sampling.temperature,
                  [&](int i) { return sample_token(kLogits, sampling, static_cast<std::uint64_t>(i)); });
  };
  expect_first({.temperature = 1.5, .top_k = 1}, {2});
  expect_first({.temperature = 1.5, .top_k = 2}, {2, 5});
  expect_first({.temperature = 1.5, .top_k = 3}, {0, 2, 5});  // of equals the first
  expect_first({.temperature = 1.0, .top_k = 99}, {0, 2, 3, 4, 5});
  // At temperature 1 the shares are 0.50, 0.24, 0.11, 0.11 and 0.02.
  expect_first({.temperature = 1.0, .top_p = 0.4}, {2});
  expect_first({.temperature = 1.0, .top_p = 0.6}, {2, 5});
  expect_first({.temperature = 1.0, .top_p = 0.8}, {0, 2, 5});
  expect_first({.temperature = 1.0, .top_p = 0.97}, {0, 2, 4, 5});
  expect_first({.temperature = 1.0, .top_p = 0.999}, {0, 2, 3, 4, 5});
  // Among the first two, the first has 0.68.
  expect_first({.temperature = 1.0, .top_k = 2, .top_p = 0.65}, {2});
  expect_first({.temperature = 1.0, .top_k = 2, .top_p = 0.70}, {2, 5});
}

// The tokens that can be drawn of a large vocabulary, against a sort of all.
TEST(SampleToken, RanksLargeVocabularies) {
  Logits logits;
  for (int i = 0; i < 5000; ++i) logits.push_back(static_cast<float>((i * 7919 % 5000) / 700.0));
  std::vector<std::size_t> ranked(logits.size());
  std::iota(ranked.begin(), ranked.end(), std::size_t{0});
  std::ranges::stable_sort(ranked, [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  const std::vector<double> shares = shares_of(logits, 1.0);
  for (const double top_p : {0.01, 0.3, 0.9}) {
    std::size_t count = 0;
    for (double sum = 0; sum < top_p;) sum += shares[ranked[count++]];
    const std::set<std::size_t> first(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(count));
    std::set<std::size_t> drawn;
    for (int i = 0; i < 4000; ++i)
      drawn.insert(static_cast<std::size_t>(
          sample_token(logits, {.temperature = 1.0, .top_p = top_p}, static_cast<std::uint64_t>(i))));
    EXPECT_TRUE(std::ranges::includes(first, drawn)) << top_p;
    EXPECT_GE(drawn.size(), std::min(first.size(), std::size_t{400}) * 8 / 10) << top_p;
  }
}

TEST(SampleToken, RefusesWhatMeansNothing) {
  const auto refusal = [](const Sampling& sampling) {
    return testing::refusal([&] { check_sampling("call", sampling); });
  };
  EXPECT_EQ(refusal({}), "accepted");
  EXPECT_EQ(refusal({.temperature = -1}),
            "call: temperature is -1; it must be 0 or a finite positive number");
  EXPECT_EQ(refusal({.top_k = -1}), "call: top_k is -1; it must be 0 or more");
  EXPECT_EQ(refusal({.top_p = 0}), "call: top_p is 0; it must be above 0 and at most 1");
  EXPECT_EQ(refusal({.top_p = kNan}), "call: top_p is nan; it must be above 0 and at most 1");
}

TEST(SampleToken, NothingFollowsFromWhatIsNoNumber) {
  const auto refusal = [](const Logits& logits, double temperature) {
    return testing::refusal<Error>([&] { sample_token(logits, {.temperature = temperature, .seed = 1}, 0); });
  };
  for (const double temperature : {0.0, 1.0}) {
    EXPECT_THAT(refusal({kNan, kNan, kNan}, temperature),
                ::testing::HasSubstr("of 3 logits 3 are not numbers"));
    for (const Logits& logits : {Logits{kNan, 1}, Logits{1, kNan}})
      EXPECT_THAT(refusal(logits, temperature), ::testing::HasSubstr("of 2 logits 1 are not numbers"));
    for (const Logits& logits : {Logits{1, kInfinity}, Logits{-kInfinity, -kInfinity}})
      EXPECT_THAT(refusal(logits, temperature), ::testing::HasSubstr("the largest is"));
    EXPECT_EQ(refusal({-kInfinity, 1}, temperature), "accepted");
  }
}

}  // namespace
}  // namespace tessera
