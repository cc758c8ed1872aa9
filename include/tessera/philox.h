// Counter-based random numbers. A value is a pure function of seed, stream and index, so it does not depend
// on rank, world, thread or the order of calls. Also a counter-based permutation, for the order of data.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>

#include "tessera/error.h"

namespace tessera {

using PhiloxKey = std::array<std::uint32_t, 2>;
using PhiloxBlock = std::array<std::uint32_t, 4>;

// Philox4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3, SC
// 2011).
constexpr PhiloxBlock philox(PhiloxKey key, PhiloxBlock counter) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9;  // Weyl sequences: the golden ratio, and √3 − 1
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// 128 random bits that depend on (seed, stream, index). Give every use of randomness a stream of its own: a
// parameter's initial values, a module's dropout in a step, and so on.
constexpr PhiloxBlock random_block(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return philox({static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
                {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                 static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)});
}

// 64 random bits that depend on (seed, stream, index), for use as the key of further draws.
constexpr std::uint64_t random_key(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const PhiloxBlock block = random_block(seed, stream, index);
  return std::uint64_t{block[1]} << 32 | block[0];
}

// Two values in (0, 1) from a block, of 52 bits each. They are never 0 or 1, so their logarithm is always
// finite.
constexpr std::array<double, 2> uniform_pair(const PhiloxBlock& block) {
  const auto to_uniform = [](std::uint32_t low, std::uint32_t high) {
    const std::uint64_t bits = (std::uint64_t{high} << 32 | low) >> 12;
    return (static_cast<double>(bits) + 0.5) * 0x1p-52;
  };
  return {to_uniform(block[0], block[1]), to_uniform(block[2], block[3])};
}

// Uniform in (0, 1). Consecutive indices 2i and 2i + 1 share a block.
constexpr double uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return uniform_pair(random_block(seed, stream, index / 2))[index % 2];
}

// The parts of normal_pair(). They use correctly rounded operations only, so that every processor, compiler
// and C library gives the same bits. kernels/cpu/random.cpp does the same for many values at once.
namespace normal_math {

inline constexpr double kLn2 = 0.693147180559945309417, kTwoPi = 6.28318530717958647693;
// Adding kRound rounds a double below 2^51 to an integer, which is then in the low bits.
inline constexpr double kRound = 0x1.8p52;
inline constexpr std::uint64_t kSqrtHalfBits = 0x3FE6A09E667F3BCD;
// Taylor coefficients, highest power first: twice those of atanh(s) / s − 1 in s², and those of sin(x) / x −
// 1 and cos(x) in x².
inline constexpr std::array<double, 9> kAtanh = {2.0 / 19, 2.0 / 17, 2.0 / 15, 2.0 / 13, 2.0 / 11,
                                                 2.0 / 9,  2.0 / 7,  2.0 / 5,  2.0 / 3};
inline constexpr std::array<double, 7> kSine = {
    -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0,
    -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0};
inline constexpr std::array<double, 9> kCosine = {1.0 / 20922789888000.0,
                                                  -1.0 / 87178291200.0,
                                                  1.0 / 479001600.0,
                                                  -1.0 / 3628800.0,
                                                  1.0 / 40320.0,
                                                  -1.0 / 720.0,
                                                  1.0 / 24.0,
                                                  -0.5,
                                                  1.0};

template <std::size_t kCount>
double polynomial(const std::array<double, kCount>& coefficients, double x) {
  double sum = coefficients[0];
  for (std::size_t i = 1; i < kCount; ++i) sum = std::fma(sum, x, coefficients[i]);
  return sum;
}

// The natural logarithm of a in (0, 1), a normal number, to 2 ulp: a = 2^e m with m from √½ to √2, and
// ln m = 2 atanh((m − 1) / (m + 1)).
inline double log_below_1(double a) {
  const auto bits = std::bit_cast<std::uint64_t>(a);
  const std::uint64_t raised = bits + (0x3FF0000000000000 - kSqrtHalfBits);  // its exponent is e
  const std::uint64_t exponent = raised >> 52;
  const double m = std::bit_cast<double>(bits - ((exponent - 1023) << 52));
  const double e = std::bit_cast<double>(std::bit_cast<std::uint64_t>(kRound) + (exponent - 1023)) - kRound;
  const double f = m - 1.0;
  const double s = f / (f + 2.0);
  const double z = s * s;
  return std::fma(e, kLn2, std::fma(s * z, polynomial(kAtanh, z), s + s));
}

struct Direction {
  double cosine, sine;
};
// Cosine and sine of the angle 2πb, b in (0, 1), with an error of at most 2 ulp of 1. Splits the angle into
// the nearest quarter turn and a rest of up to an eighth turn.
inline Direction direction(double b) {
  const double shifted = std::fma(b, 4.0, kRound);
  const auto quarter = std::bit_cast<std::uint64_t>(shifted);
  const double x = std::fma(shifted - kRound, -0.25, b) * kTwoPi;
  const double z = x * x;
  const double sine = std::fma(polynomial(kSine, z) * z, x, x), cosine = polynomial(kCosine, z);
  const auto negated = [](double value, std::uint64_t sign) {
    return std::bit_cast<double>(std::bit_cast<std::uint64_t>(value) ^ (sign & 2) << 62);
  };
  const bool odd = (quarter & 1) != 0;
  return {negated(odd ? sine : cosine, quarter + 1), negated(odd ? cosine : sine, quarter)};
}

}  // namespace normal_math

// Two independent standard normal values, from uniform values 2·index and 2·index + 1 (Box and Muller 1958).
inline std::array<double, 2> normal_pair(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const auto [a, b] = uniform_pair(random_block(seed, stream, index));
  const double radius = std::sqrt(-2.0 * normal_math::log_below_1(a));
  const auto [cosine, sine] = normal_math::direction(b);
  return {radius * cosine, radius * sine};
}

// Standard normal. Where many consecutive values are needed, normal_pair() halves the work.
inline double normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return normal_pair(seed, stream, index / 2)[index % 2];
}

// The position of `index` in a pseudorandom permutation of [0, n): a bijection for every (n, seed, epoch), in
// constant memory. It is a Feistel network of eight Philox rounds over the smallest even number of bits that
// holds n − 1, repeated until the result is below n (Black and Rogaway, Ciphers with arbitrary finite
// domains, CT-RSA 2002). At most four repetitions are expected. Throws UsageError unless index < n.
constexpr std::uint64_t permute(std::uint64_t index, std::uint64_t n, std::uint64_t seed,
                                std::uint64_t epoch) {
  if (index >= n)
    throw UsageError("permute: index " + std::to_string(index) + " is not below n = " + std::to_string(n));
  if (n <= 1) return 0;
  const int half_bits = (static_cast<int>(std::bit_width(n - 1)) + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  // The key differs from that of random_block() under the same seed, so that neither repeats the other.
  const PhiloxKey key = {static_cast<std::uint32_t>(seed),
                         static_cast<std::uint32_t>(seed >> 32) ^ 0x7065726DU};
  do {
    std::uint64_t left = index >> half_bits;
    std::uint64_t right = index & mask;
    for (std::uint32_t round = 0; round < 8; ++round) {
      const PhiloxBlock mixed =
          philox(key, {static_cast<std::uint32_t>(right), round, static_cast<std::uint32_t>(epoch),
                       static_cast<std::uint32_t>(epoch >> 32)});
      const std::uint64_t next = left ^ (mixed[0] & mask);
      left = right;
      right = next;
    }
    index = left << half_bits | right;
  } while (index >= n);
  return index;
}

}  // namespace tessera
