#include "src/comm/ordered_chain.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/reduce.h"
#include "tessera/id_vector.h"
#include "tests/comm/contract.h"

namespace tessera::comm {
namespace {

TEST(OrderedChain, WidensEverySixteenBitPattern) {
  for (const DType type : {DType::bf16, DType::fp16}) {
    const std::uint32_t infinity = type == DType::bf16 ? 0x7F80u : 0x7C00u;
    for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
      const auto element = static_cast<std::uint16_t>(bits);
      const void* contribution = &element;
      float result = 0;
      ordered_chain({&contribution, 1}, type, 1, false, &result);
      if ((bits & 0x7FFFu) > infinity)
        ASSERT_TRUE(std::isnan(result)) << bits;
      else if ((bits & 0x7FFFu) == infinity)
        ASSERT_EQ(result, bits & 0x8000u ? -HUGE_VALF : HUGE_VALF);
      else
        ASSERT_EQ(std::bit_cast<std::uint32_t>(result),
                  std::bit_cast<std::uint32_t>(contract::widened(type, bits)))
            << name_of(type) << " " << bits;
    }
  }
}

TEST(OrderedChain, AnyContributionMayBeTheResult) {
  constexpr std::int64_t kNumel = 2500;
  for (const int ranks : {1, 2, 3, 5, 8, 9, 19})
    for (int aliased = 0; aliased < ranks; ++aliased) {
      IdVector<std::vector<float>> inputs(ranks);
      std::vector<float> expected;
      for (std::int64_t i = 0; i < kNumel; ++i) {
        float sum = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const float value = contract::value_of(rank, 0, i);
          inputs[rank].push_back(value);
          sum = rank == 0 ? value : sum + value;
        }
        expected.push_back(sum);
      }
      std::vector<const void*> contributions;
      for (const std::vector<float>& input : inputs) contributions.push_back(input.data());
      std::vector<float>& result = inputs[aliased];
      SquareSum squares, of_expected;
      ordered_chain(contributions, DType::fp32, kNumel, false, result.data(), {&squares, 64});
      EXPECT_EQ(contract::raw(result), contract::raw(expected)) << ranks << " ranks, result is " << aliased;
      kernels::sum_of_squares({}, kNumel, DType::fp32, expected.data(), {&of_expected, 64});
      EXPECT_TRUE(squares == of_expected) << ranks << " ranks, " << aliased;
    }
}

// Halves may be summed beforehand: what ranks do that have several contributions each.
TEST(BalancedSum, IsATreeInWhichAnyContributionMayBeTheResult) {
  constexpr std::int64_t kNumel = 2500;
  for (int ranks = 1; ranks <= 19; ++ranks)
    for (int aliased = 0; aliased < ranks; ++aliased) {
      IdVector<std::vector<float>> inputs(ranks);
      std::vector<float> expected;
      for (std::int64_t i = 0; i < kNumel; ++i) {
        std::vector<float> terms;
        for (int rank = 0; rank < ranks; ++rank) {
          inputs[rank].push_back(contract::value_of(rank, 0, i) / 3);
          terms.push_back(inputs[rank].back());
        }
        expected.push_back(contract::tree_of(terms));
      }
      std::vector<const void*> contributions;
      for (const std::vector<float>& input : inputs) contributions.push_back(input.data());
      std::vector<float>& result = inputs[aliased];
      balanced_sum(contributions, DType::fp32, kNumel, result.data());
      EXPECT_EQ(contract::raw(result), contract::raw(expected)) << ranks << " ranks, result is " << aliased;
    }
}

TEST(OrderedChain, KeepsTheSignOfZeroAndStartsFromTheFirst) {
  // Begun from 0.0 instead of the first contribution, -0.0 would become +0.0.
  const float minus_zero = -0.0f;
  const void* contributions[] = {&minus_zero, &minus_zero};
  float result = 1;
  ordered_chain(contributions, DType::fp32, 1, false, &result);
  EXPECT_TRUE(std::signbit(result));
}

}  // namespace
}  // namespace tessera::comm
