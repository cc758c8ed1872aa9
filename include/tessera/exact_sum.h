// Sums of float64 numbers that are kept exactly, and rounded once. In which order numbers are added, by which
// threads and on which ranks, then cannot matter. Plain data; kernels/exact_sum.h adds to it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera {

// An integer in two's complement that counts units of 2^kUnit; its least word comes first. Where nothing was
// added all its bytes are zero.
template <int kUnit, int kWords>
struct ExactSum {
  std::uint64_t words[static_cast<std::size_t>(kWords)] = {};
  bool operator==(const ExactSum&) const = default;
};

// A sum of any float64 numbers. There is room for 2^77 of the largest.
struct NumberSum {
  ExactSum<-1074, 34> sum = {};  // of the finite ones
  double nonfinite = 0.0;        // the sum of the others: 0, an infinity or NaN
  bool operator==(const NumberSum&) const = default;
};

// What LossTotals add up to.
struct LossSum {
  NumberSum loss = {};
  std::int64_t counted = 0;
  bool operator==(const LossSum&) const = default;
};

// Squares are added in float64 over blocks of so many elements: those 32 apart first, then 16, 8, 4, 2 and 1.
// The sums of blocks are added exactly. A range that is cut between blocks has the sum of its parts.
inline constexpr int kSquareBlock = 64;

// What squares of fp32 numbers add up to: these are multiples of 2^-298 and below 2^256, so there is room for
// 2^85 of the largest.
struct SquareSum {
  ExactSum<-298, 10> sum = {};  // of the blocks in which every element is finite
  // 0: every element is finite. Otherwise the greatest int64 less the place of the first that is not. So the
  // greatest of several tells the first of all.
  std::int64_t nonfinite = 0;
  bool operator==(const SquareSum&) const = default;
};

// Where the squares of elements are added, if anywhere, and the place of the first of these elements: a
// multiple of kSquareBlock.
struct Squares {
  SquareSum* sum = nullptr;
  std::int64_t first = 0;
};

}  // namespace tessera
