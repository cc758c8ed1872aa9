// What a step adds up and decides where its updates run.
#include "kernels/gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace tessera::kernels {
namespace {

constexpr int kHeader = 8;
constexpr int kSquareSlots = sizeof(SquareSum) / sizeof(double);
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Scalars of some ranks: the header's slots are weight, what was counted, abandoned, loss scale.
struct Scalars {
  int ranks;
  std::vector<double> values;

  Scalars(int ranks_in, std::uint64_t seed) : ranks(ranks_in) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> uniform(0.1, 3.0);
    values.resize(static_cast<std::size_t>(ranks * numel()));
    for (double& value : values) value = uniform(random);
    for (int rank = 0; rank < ranks; ++rank) {
      at(rank, 1) = bits_as<double>(std::int64_t{1 + rank % 5});
      at(rank, 2) = 0.0;
      at(rank, 3) = 1024.0;
      at(rank, 5) = 7.0;
      SquareSum squares;
      for (int block = 0; block < 20; ++block) exact::add_squares(squares, uniform(random));
      set(rank, squares);
    }
  }
  std::int64_t numel() const { return kHeader + kSquareSlots + 3; }  // others follow
  double& at(int rank, int slot) { return values[static_cast<std::size_t>(rank * numel() + slot)]; }
  void set(int rank, const SquareSum& squares) { std::memcpy(&at(rank, kHeader), &squares, sizeof(squares)); }
  SquareSum squares(int rank) { return squares_at(&at(rank, kHeader)); }

  UpdateGate gate(double max_norm) const {
    UpdateGate gate{.gradient_scale = std::nan(""), .apply = -7};
    set_gate({},
             {.scalars = values.data(),
              .ranks = ranks,
              .numel = numel(),
              .weight = 0,
              .counted = 1,
              .abandoned = 2,
              .loss_scale = 3,
              .agreed = 1U << 3 | 1U << 5,
              .squares = kHeader,
              .max_norm = max_norm},
             &gate);
    return gate;
  }
};

TEST(Gate, IsThatOfTheSums) {
  for (const int ranks : {1, 2, 7, 300})
    for (const double max_norm : {0.0, 0.5, 1e9}) {
      Scalars scalars(ranks, static_cast<std::uint64_t>(ranks * 1000));
      long double weight = 0, squares = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        weight += scalars.at(rank, 0) + static_cast<long double>(1 + rank % 5);
        squares += exact::value_of(scalars.squares(rank));
      }
      const auto unscale = static_cast<double>(1.0L / (weight * 1024.0L));
      const double norm = static_cast<double>(std::sqrt(squares)) * unscale;
      const double factor = max_norm == 0.0 ? 1.0 : std::min(1.0, max_norm / (norm + 1e-6));
      const UpdateGate gate = scalars.gate(max_norm);
      EXPECT_EQ(gate.apply, 1);
      EXPECT_NEAR(gate.gradient_scale, factor * unscale, 1e-13 * factor * unscale);
    }
}

// The order of ranks cannot matter where their squares differ by more than float64 has digits.
TEST(Gate, AddsSquaresExactly) {
  const double sums[] = {1.0, std::ldexp(1.0, -53), std::ldexp(1.0, -100), std::ldexp(1.0, 90)};
  std::vector<int> order = {0, 1, 2, 3};
  Scalars scalars(4, 1);
  std::vector<double> scales;
  do {
    for (int rank = 0; rank < 4; ++rank) {
      SquareSum squares;
      exact::add_squares(squares, sums[order[static_cast<std::size_t>(rank)]]);
      scalars.set(rank, squares);
      scalars.at(rank, 0) = 1.0, scalars.at(rank, 1) = 0.0;
    }
    scales.push_back(scalars.gate(1.0).gradient_scale);
  } while (std::ranges::next_permutation(order).found);
  EXPECT_EQ(scales, std::vector<double>(24, scales[0]));
}

TEST(Gate, ClipsWhereTheNormIsAbove) {
  Scalars scalars(2, 1);
  const double whole = scalars.gate(0.0).gradient_scale;
  EXPECT_EQ(scalars.gate(1e9).gradient_scale, whole);
  const double clipped = scalars.gate(1e-4).gradient_scale;
  EXPECT_LT(clipped, whole);
  EXPECT_GT(clipped, 0.0);
}

TEST(Gate, IsClosedForWhatIsSkipped) {
  const auto closed = [](const auto& spoil) {
    Scalars scalars(3, 2);
    spoil(scalars);
    return scalars.gate(1.0).apply == 0;
  };
  EXPECT_FALSE(closed([](Scalars&) {}));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(closed([&](Scalars& s) { s.at(rank, 2) = 1.0; }));
    EXPECT_TRUE(closed([&](Scalars& s) {
      SquareSum squares = s.squares(rank);
      exact::note_nonfinite(squares, 1000);
      s.set(rank, squares);
    }));
  }
  EXPECT_TRUE(closed([](Scalars& s) {
    for (int rank = 0; rank < 3; ++rank) s.at(rank, 0) = s.at(rank, 1) = 0.0;
  }));
  // Each weight is finite, their sum is not; nor is a sum times the scale.
  for (const double large : {std::numeric_limits<double>::max(), 1e307})
    EXPECT_TRUE(closed([&](Scalars& s) { s.at(0, 0) = s.at(1, 0) = large; }));
  for (const double bad : {kInfinity, std::nan(""), -99.0})
    EXPECT_TRUE(closed([&](Scalars& s) { s.at(1, 0) = bad; }));
  // All weights together are so small that no fp32 can scale by their inverse.
  Scalars small(3, 2);
  for (int rank = 0; rank < 3; ++rank) small.at(rank, 0) = 1e-45, small.at(rank, 1) = 0.0;
  EXPECT_EQ(small.gate(0.0).apply, 0);
  EXPECT_EQ(small.gate(1.0).apply, 1) << "clipping makes the factor one that can be told";
  // What two slots hold must be the same everywhere.
  for (const int slot : {3, 5}) {
    EXPECT_TRUE(closed([&](Scalars& s) { s.at(2, slot) += 1.0; }));
    EXPECT_TRUE(closed([&](Scalars& s) { s.at(1, slot) = std::nan(""); }));
  }
  EXPECT_FALSE(closed([&](Scalars& s) { s.at(2, 4) += 1.0; }));
}

// As what fp32 makes of the scale is what a gradient is multiplied by.
TEST(Gate, IsClosedWhereTheScaleIsNothing) {
  for (const double weight : {1e42, 1e46}) {
    Scalars scalars(1, 5);
    scalars.at(0, 0) = weight;
    scalars.at(0, 3) = 1.0;
    EXPECT_EQ(scalars.gate(0.0).apply, weight < 1e44 ? 1 : 0) << weight;
  }
}

TEST(Gate, LossesAddUp) {
  LossSum sum;
  for (const LossTotal& total : {LossTotal{2.5, 7}, LossTotal{1e-300, 0}, LossTotal{-2.5, 9}})
    add_loss({}, &total, &sum);
  EXPECT_EQ(exact::value_of(sum.loss), 1e-300);
  EXPECT_EQ(sum.counted, 16);
}

}  // namespace
}  // namespace tessera::kernels
