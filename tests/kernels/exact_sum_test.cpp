// Exact sums beside long arithmetic of the test's own, digit by digit.
#include "kernels/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace tessera::kernels::exact {
namespace {

// Multiples of 2^-1200 in binary, a digit an int, with carries that wait: slow and simple.
class Digits {
 public:
  void add(double number) {
    int exponent = 0;
    const double fraction = std::frexp(std::fabs(number), &exponent);  // in [1/2, 1)
    auto mantissa = static_cast<std::int64_t>(std::ldexp(fraction, 53));
    for (int k = exponent - 53 + kPoint; mantissa != 0; ++k, mantissa /= 2)
      if (mantissa % 2 != 0) digits_.at(static_cast<std::size_t>(k)) += std::signbit(number) ? -1 : 1;
  }

  // The nearest float64, by comparing what is left behind its last digit with one half.
  double value() const {
    std::vector<int> digits = carried(digits_);
    const bool negative = digits.back() < 0;
    if (negative) {
      for (int& digit : digits) digit = -digit;
      digits = carried(digits);
    }
    int top = static_cast<int>(digits.size()) - 1;
    while (top > 0 && digits[static_cast<std::size_t>(top)] == 0) --top;
    const int last = std::max(top - 52, kPoint - 1074);
    double number = 0.0;
    for (int k = top; k >= last; --k) number = 2.0 * number + digits[static_cast<std::size_t>(k)];
    const bool half = digits[static_cast<std::size_t>(last - 1)] != 0;
    const bool more = std::any_of(digits.begin(), digits.begin() + last - 1, [](int d) { return d != 0; });
    if (half && (more || std::fmod(number, 2.0) != 0.0)) number += 1.0;
    number = std::ldexp(number, last - kPoint);
    return negative ? -number : number;
  }

 private:
  static constexpr int kPoint = 1200;

  // All digits 0 or 1, but for the highest, which has the sign.
  static std::vector<int> carried(std::vector<int> digits) {
    for (std::size_t k = 0; k + 1 < digits.size(); ++k) {
      const int carry = (digits[k] - (digits[k] & 1)) / 2;
      digits[k] &= 1;
      digits[k + 1] += carry;
    }
    return digits;
  }

  std::vector<int> digits_ = std::vector<int>(2400);
};

// Squares of fp32 numbers, denormal ones included, added up in float64 as blocks are.
double random_block(std::mt19937_64& random, int least_exponent, int most_exponent) {
  double sum = 0.0;
  for (int i = 0; i < 8; ++i) {
    const auto exponent = std::uniform_int_distribution<int>(least_exponent, most_exponent)(random);
    const auto bits = static_cast<std::uint32_t>(exponent << 23 | (random() & 0x7fffff));
    const double number = std::bit_cast<float>(bits);
    sum += number * number;
  }
  return sum;
}

SquareSum sum_of(const std::vector<double>& blocks) {
  SquareSum sum;
  for (const double block : blocks) add_squares(sum, block);
  return sum;
}

// Of either sign, denormal numbers included, so that some sums nearly vanish.
TEST(NumberSum, IsThatOfLongArithmetic) {
  std::mt19937_64 random(2);
  constexpr int kExponents[][2] = {{0, 2046}, {0, 0}, {0, 60}, {1000, 1030}, {2040, 2046}};
  for (const auto& [least, most] : kExponents)
    for (const int count : {1, 2, 3, 50, 300}) {
      std::vector<double> numbers;
      Digits expected;
      for (int i = 0; i < count; ++i) {
        const auto exponent = std::uniform_int_distribution<std::uint64_t>(
            static_cast<std::uint64_t>(least), static_cast<std::uint64_t>(most))(random);
        numbers.push_back(std::bit_cast<double>(random() >> 63 << 63 | exponent << 52 | random() >> 12));
        if (i % 3 == 1) numbers.back() = -numbers[static_cast<std::size_t>(i - 1)];
        expected.add(numbers.back());
      }
      NumberSum sum;
      for (const double number : numbers) add(sum, number);
      EXPECT_EQ(value_of(sum), expected.value()) << count << " of exponents " << least << " to " << most;
      std::shuffle(numbers.begin(), numbers.end(), random);
      NumberSum parts[2];
      for (const double number : numbers) add(parts[random() % 2], number);
      add(parts[0], parts[1]);
      EXPECT_TRUE(parts[0] == sum);
    }
}

TEST(NumberSum, KeepsWhatIsNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto sum_with = [](std::initializer_list<double> numbers) {
    NumberSum sum;
    for (const double number : numbers) add(sum, number);
    return value_of(sum);
  };
  EXPECT_EQ(sum_with({1.0, infinity, -DBL_MAX}), infinity);
  EXPECT_EQ(sum_with({-infinity, 1.0}), -infinity);
  EXPECT_TRUE(std::isnan(sum_with({-infinity, infinity})));
  EXPECT_TRUE(std::isnan(sum_with({1.0, std::nan(""), infinity})));
  EXPECT_EQ(sum_with({DBL_MAX, DBL_MAX}), infinity) << "as float64 has no such number";
  EXPECT_EQ(sum_with({DBL_MAX, DBL_MAX, -DBL_MAX}), DBL_MAX);
}

TEST(NumberSum, AddsWholeNumbersExactly) {
  constexpr std::int64_t kLarge = (std::int64_t{1} << 60) + 1;
  NumberSum sum;
  add(sum, kLarge);
  add(sum, -static_cast<double>(std::int64_t{1} << 60));
  EXPECT_EQ(value_of(sum), 1.0);
  add(sum, -kLarge);
  add(sum, std::ldexp(1.0, 60));
  EXPECT_EQ(value_of(sum), 0.0);
}

TEST(SquareSum, IsThatOfLongArithmetic) {
  std::mt19937_64 random(1);
  constexpr int kExponents[][2] = {{0, 254}, {0, 0}, {0, 3}, {120, 130}, {250, 254}, {60, 70}};
  for (const auto& [least, most] : kExponents)
    for (const int count : {1, 2, 3, 50, 300}) {
      std::vector<double> blocks;
      Digits expected;
      for (int i = 0; i < count; ++i) {
        blocks.push_back(random_block(random, least, most));
        expected.add(blocks.back());
      }
      const SquareSum sum = sum_of(blocks);
      EXPECT_EQ(value_of(sum), expected.value()) << count << " of exponents " << least << " to " << most;
      // In another order, in two parts.
      std::shuffle(blocks.begin(), blocks.end(), random);
      const auto middle = blocks.begin() + static_cast<std::ptrdiff_t>(random() % (blocks.size() + 1));
      SquareSum parts = sum_of({blocks.begin(), middle});
      add(parts, sum_of({middle, blocks.end()}));
      EXPECT_TRUE(parts == sum);
    }
}

TEST(SquareSum, RoundsOnceToTheNearestAndHalvesToEven) {
  const double one = 1.0, next = 1.0 + DBL_EPSILON, half = DBL_EPSILON / 2;
  EXPECT_EQ(value_of(sum_of({one, half})), one);
  EXPECT_EQ(value_of(sum_of({next, half})), next + DBL_EPSILON);
  const double least = std::ldexp(1.0, -298);
  EXPECT_EQ(value_of(sum_of({one, half, least})), next) << "float64 alone would not see the last";
  EXPECT_EQ(value_of(sum_of({least, half, one})), next);
  EXPECT_EQ(value_of(sum_of({least})), least);
  EXPECT_EQ(value_of(sum_of({std::ldexp(1.0, 53), one})), std::ldexp(1.0, 53));
  EXPECT_EQ(value_of(sum_of({2.0 - DBL_EPSILON, half})), 2.0) << "carried into the next exponent";
}

TEST(SquareSum, NothingIsAllZero) {
  EXPECT_EQ(value_of(SquareSum{}), 0.0);
  EXPECT_TRUE(sum_of({0.0, 0.0}) == SquareSum{});
  EXPECT_EQ(first_nonfinite(SquareSum{}), -1);
}

TEST(SquareSum, CarriesThroughAllWords) {
  SquareSum sum;
  for (int w = 0; w < 9; ++w) sum.sum.words[w] = ~std::uint64_t{0};
  add_squares(sum, std::ldexp(1.0, -298));
  for (int w = 0; w < 9; ++w) EXPECT_EQ(sum.sum.words[w], 0U) << w;
  EXPECT_EQ(sum.sum.words[9], 1U);
  EXPECT_EQ(value_of(sum), std::ldexp(1.0, 64 * 9 - 298));
}

TEST(SquareSum, KnowsTheFirstThatIsNotFinite) {
  const double bad = std::numeric_limits<double>::infinity();
  SquareSum sum = sum_of({2.0, bad, std::nan(""), 3.0});
  EXPECT_EQ(value_of(sum), 5.0) << "they are left out";
  for (const std::int64_t place : {700, 500, 900}) note_nonfinite(sum, place);
  EXPECT_EQ(first_nonfinite(sum), 500);
  SquareSum other = sum_of({1.0});
  note_nonfinite(other, 0);
  EXPECT_TRUE(std::isnan(value_of(other)));
  add(sum, other);
  EXPECT_EQ(first_nonfinite(sum), 0);
  add(sum, sum_of({1.0}));
  EXPECT_EQ(first_nonfinite(sum), 0);
}

}  // namespace
}  // namespace tessera::kernels::exact
