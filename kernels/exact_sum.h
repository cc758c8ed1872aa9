// Adds to exact sums and rounds them (tessera/exact_sum.h): the same on the host and on a GPU.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/float_types.h"
#include "kernels/host_device.h"
#include "tessera/exact_sum.h"

namespace tessera::kernels::exact {

// a + b + carry, which is 0 or 1 and becomes what is carried on.
TESSERA_HOST_DEVICE inline std::uint64_t add_word(std::uint64_t a, std::uint64_t b, std::uint64_t& carry) {
  const std::uint64_t partial = a + b, sum = partial + carry;
  carry = static_cast<std::uint64_t>(partial < a) | static_cast<std::uint64_t>(sum < partial);
  return sum;
}

template <int kUnit, int kWords>
TESSERA_HOST_DEVICE void add(ExactSum<kUnit, kWords>& to, const ExactSum<kUnit, kWords>& from) {
  std::uint64_t carry = 0;
  for (int w = 0; w < kWords; ++w) to.words[w] = add_word(to.words[w], from.words[w], carry);
}

template <int kUnit, int kWords>
TESSERA_HOST_DEVICE void negate(ExactSum<kUnit, kWords>& sum) {
  std::uint64_t carry = 1;
  for (std::uint64_t& word : sum.words) word = add_word(~word, 0, carry);
}

// Adds value · 2^bit units, below the highest word.
template <int kUnit, int kWords>
TESSERA_HOST_DEVICE void add_at(ExactSum<kUnit, kWords>& to, int bit, std::uint64_t value) {
  int w = bit / 64;
  const int shift = bit % 64;
  std::uint64_t carry = 0;
  to.words[w] = add_word(to.words[w], value << shift, carry);
  ++w;
  to.words[w] = add_word(to.words[w], value >> 1 >> (63 - shift), carry);
  while (carry != 0 && ++w < kWords) to.words[w] = add_word(to.words[w], 0, carry);
}

// The bit of the sum that counts as the lowest of a float64's mantissa, given the number's bits without sign.
// Below 0 where the number, a multiple of the sum's unit, has zeros there.
template <int kUnit, int kWords>
TESSERA_HOST_DEVICE int lowest_bit(const ExactSum<kUnit, kWords>&, std::uint64_t bits) {
  const int exponent = static_cast<int>(bits >> 52);
  return (exponent > 0 ? exponent : 1) - 1075 - kUnit;
}

// The finite number is a multiple of the sum's unit, and 0 or more.
template <int kUnit, int kWords>
TESSERA_HOST_DEVICE void add_magnitude(ExactSum<kUnit, kWords>& to, double number) {
  const auto bits = bits_as<std::uint64_t>(number);
  const std::uint64_t implied = std::uint64_t{1} << 52;
  const std::uint64_t mantissa = bits % implied + (bits >= implied ? implied : 0);
  if (mantissa == 0) return;
  const int bit = lowest_bit(to, bits);
  if (bit >= 0)
    add_at(to, bit, mantissa);
  else
    add_at(to, 0, mantissa >> -bit);  // only zeros are lost
}

// To the nearest float64, of two that are as near to the even one; infinite beyond float64.
template <int kUnit, int kWords>
TESSERA_HOST_DEVICE double rounded(ExactSum<kUnit, kWords> sum) {
  const bool negative = sum.words[kWords - 1] >> 63 != 0;
  if (negative) negate(sum);
  int top = kWords - 1;
  while (top > 0 && sum.words[top] == 0) --top;
  int shift = 0;  // that brings the highest bit to the highest place of its word
  while (shift < 63 && sum.words[top] << shift >> 63 == 0) ++shift;
  std::uint64_t head = sum.words[top] << shift;
  std::uint64_t rest = top > 0 ? sum.words[top - 1] : 0;
  if (shift > 0) {
    head |= rest >> (64 - shift);
    rest <<= shift;
  }
  for (int w = top - 2; w >= 0; --w) rest |= sum.words[w];
  if (rest != 0) head |= 1;  // ten bits below the one that rounding looks at
  const double number = std::ldexp(static_cast<double>(head), 64 * top - shift + kUnit);
  return negative ? -number : number;
}

inline constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

// ------------------------------------------------------------------ numbers

TESSERA_HOST_DEVICE inline void add(NumberSum& to, double number) {
  if (!(number >= -DBL_MAX && number <= DBL_MAX)) {
    to.nonfinite += number;
  } else if (number >= 0.0) {
    add_magnitude(to.sum, number);
  } else {
    negate(to.sum);
    add_magnitude(to.sum, -number);
    negate(to.sum);
  }
}

// A whole number, of which float64 may have too few digits.
TESSERA_HOST_DEVICE inline void add(NumberSum& to, std::int64_t number) {
  constexpr std::int64_t kLow = std::int64_t{1} << 32;
  const std::int64_t low = number % kLow;
  add(to, static_cast<double>(low));
  add(to, static_cast<double>(number - low));
}

TESSERA_HOST_DEVICE inline void add(NumberSum& to, const NumberSum& from) {
  add(to.sum, from.sum);
  to.nonfinite += from.nonfinite;
}

TESSERA_HOST_DEVICE inline double value_of(const NumberSum& numbers) {
  if (numbers.nonfinite == 0.0) return rounded(numbers.sum);
  return numbers.nonfinite == numbers.nonfinite ? numbers.nonfinite : kNotANumber;
}

TESSERA_HOST_DEVICE inline void add(LossSum& to, double loss, std::int64_t counted) {
  add(to.loss, loss);
  to.counted += counted;
}

TESSERA_HOST_DEVICE inline void add(LossSum& to, const LossSum& from) {
  add(to.loss, from.loss);
  to.counted += from.counted;
}

// ------------------------------------------------------------------ squares

inline constexpr std::int64_t kFarthest = std::numeric_limits<std::int64_t>::max();

// `block`: a sum of squares; NaN or infinite where an element is, and then nothing is added.
TESSERA_HOST_DEVICE inline void add_squares(SquareSum& to, double block) {
  if (block <= DBL_MAX) add_magnitude(to.sum, block);
}

// The element at `place` is not finite.
TESSERA_HOST_DEVICE inline void note_nonfinite(SquareSum& to, std::int64_t place) {
  if (kFarthest - place > to.nonfinite) to.nonfinite = kFarthest - place;
}

TESSERA_HOST_DEVICE inline void add(SquareSum& to, const SquareSum& from) {
  add(to.sum, from.sum);
  if (from.nonfinite > to.nonfinite) to.nonfinite = from.nonfinite;
}

// The place of the first element that is not finite; -1: all are.
TESSERA_HOST_DEVICE inline std::int64_t first_nonfinite(const SquareSum& squares) {
  return squares.nonfinite == 0 ? -1 : kFarthest - squares.nonfinite;
}

// NaN where an element is not finite.
TESSERA_HOST_DEVICE inline double value_of(const SquareSum& squares) {
  return squares.nonfinite == 0 ? rounded(squares.sum) : kNotANumber;
}

}  // namespace tessera::kernels::exact
