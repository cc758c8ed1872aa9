// Which elements of a parameter each tensor rank has.
#include "tessera/cut.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/layout/random_units.h"

namespace tessera {
namespace {

using testing::draw;
using Runs = std::vector<ShareRun>;

TEST(TensorShares, TheDrawingsOfTheHeader) {
  const TensorShares segments("w", {6}, {.dim = 0, .segments = {4, 2}}, 2);
  EXPECT_EQ(segments.shape(), Shape{3});
  EXPECT_EQ(segments.of_share(0, 0, 3), (Runs{{0, 0, 0, 2}, {0, 2, 4, 1}}));
  EXPECT_EQ(segments.of_share(1, 0, 3), (Runs{{1, 0, 2, 2}, {1, 2, 5, 1}}));
  EXPECT_EQ(segments.of_parameter(0, 6), (Runs{{0, 0, 0, 2}, {1, 0, 2, 2}, {0, 2, 4, 1}, {1, 2, 5, 1}}));

  const TensorShares padded("w", {5}, {.dim = 0, .padded = true}, 2);
  EXPECT_EQ(padded.shape(), Shape{3});
  EXPECT_EQ(padded.of_share(0, 0, 3), (Runs{{0, 0, 0, 3}}));
  EXPECT_EQ(padded.of_share(1, 0, 3), (Runs{{1, 0, 3, 2}}));
  EXPECT_EQ(padded.of_parameter(1, 5), (Runs{{0, 1, 1, 2}, {1, 0, 3, 2}}));

  const TensorShares blocks("w", {2, 6}, {.dim = 1, .blocks = 3}, 1);
  EXPECT_FALSE(blocks.is_whole());
  EXPECT_EQ(blocks.shape(), (Shape{2, 2}));
  EXPECT_EQ(blocks.of_share(0, 0, 12),
            (Runs{{0, 0, 0, 2}, {0, 2, 6, 2}, {0, 4, 2, 2}, {0, 6, 8, 2}, {0, 8, 4, 2}, {0, 10, 10, 2}}));
  EXPECT_EQ(blocks.block_of({.local = 9}), 2);
}

// A block is the share of one of so many ranks, whoever has it.
TEST(TensorShares, BlocksAreTheSharesOfMoreRanks) {
  const Cut cut = {.dim = 1, .segments = {8, 16}};
  const Shape shape = {3, 24, 2};
  const TensorShares of_eight("w", shape, cut, 8);
  for (const int ranks : {1, 2, 4, 8}) {
    Cut in_blocks = cut;
    in_blocks.blocks = 8;
    const TensorShares shares("w", shape, in_blocks, ranks);
    EXPECT_EQ(shares.numel(), 8 / ranks * of_eight.numel());
    for (int block = 0; block < 8; ++block) {
      const std::int64_t begin = block % (8 / ranks) * of_eight.numel();
      Runs runs = shares.of_share(block / (8 / ranks), begin, begin + of_eight.numel());
      for (ShareRun& run : runs) {
        EXPECT_EQ(shares.block_of(run), block);
        run.tensor_rank = block, run.local -= begin;
      }
      EXPECT_EQ(runs, of_eight.of_share(block, 0, of_eight.numel())) << ranks << " ranks, block " << block;
    }
  }
}

TEST(TensorShares, AMatrixCutAlongItsColumns) {
  const TensorShares shares("w", {2, 4}, {.dim = 1}, 2);
  EXPECT_EQ(shares.shape(), (Shape{2, 2}));
  EXPECT_EQ(shares.of_share(1, 0, 4), (Runs{{1, 0, 2, 2}, {1, 2, 6, 2}}));
  EXPECT_EQ(shares.of_share(1, 1, 3), (Runs{{1, 1, 3, 1}, {1, 2, 6, 1}}));
}

// 2 is the last rank with an element, and has one place of padding; rank 3 has nothing else.
TEST(TensorShares, PaddingMayFillWholeRanks) {
  const TensorShares shares("w", {5, 3}, {.dim = 0, .padded = true}, 4);
  EXPECT_EQ(shares.shape(), (Shape{2, 3}));
  EXPECT_EQ(shares.of_share(2, 0, 6), (Runs{{2, 0, 12, 3}}));
  EXPECT_EQ(shares.of_share(3, 0, 6), Runs{});
}

TEST(TensorShares, WithoutACutEveryRankHasAllAndRankZeroIsNamed) {
  const TensorShares shares("w", {3, 2}, {}, 4);
  EXPECT_TRUE(shares.is_whole());
  EXPECT_EQ(shares.shape(), (Shape{3, 2}));
  EXPECT_EQ(shares.of_share(3, 1, 6), (Runs{{3, 1, 1, 5}}));
  EXPECT_EQ(shares.of_parameter(1, 6), (Runs{{0, 1, 1, 5}}));
}

TEST(TensorShares, OneRankHasTheWholeParameterInItsOwnOrder) {
  const TensorShares shares("w", {3, 7}, {.dim = 1, .segments = {3, 4}}, 1);
  EXPECT_TRUE(shares.is_whole());
  EXPECT_EQ(shares.shape(), (Shape{3, 7}));
  EXPECT_EQ(shares.of_share(0, 0, 21), (Runs{{0, 0, 0, 21}}));
}

// A table of 50,257 rows of 1,600 has a run for each rank, not for each element.
TEST(TensorShares, RunsAreAsLongAsTheyCanBe) {
  const TensorShares table("w", {50257, 1600}, {.dim = 0, .padded = true}, 8);
  EXPECT_EQ(table.of_parameter(0, table.global_numel()).size(), 8u);
  EXPECT_EQ(table.of_share(7, 0, table.numel()), (Runs{{7, 0, 7 * 6283 * 1600, 6276 * 1600}}));
  const TensorShares joined("w", {3 * 1600, 1600}, {.dim = 0, .segments = {1600, 1600, 1600}}, 8);
  EXPECT_EQ(joined.of_share(3, 0, joined.numel()).size(), 3u);
  const TensorShares columns("w", {6400, 1600}, {.dim = 1}, 8);
  EXPECT_EQ(columns.of_share(3, 0, columns.numel()).size(), 6400u);
}

// Coordinates of an element, which the arithmetic of runs has no part in.
struct Spot {
  int rank = 0;
  std::int64_t local = 0;
};
Spot spot_of(const Shape& shape, const Cut& cut, int ranks, std::int64_t global) {
  const auto dim = static_cast<std::size_t>(cut.dim);
  const int blocks = std::max(cut.blocks, ranks), own = blocks / ranks;
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t d = shape.size(); d-- > 0; global /= shape[d]) index[d] = global % shape[d];
  std::vector<std::int64_t> lengths = cut.segments;
  if (lengths.empty()) lengths = {shape[dim]};
  std::int64_t local_length = 0;
  for (std::int64_t length : lengths) local_length += (length + blocks - 1) / blocks;
  std::int64_t at = index[dim], local_at = 0;
  std::size_t segment = 0;
  for (; at >= lengths[segment]; ++segment) {
    at -= lengths[segment];
    local_at += (lengths[segment] + blocks - 1) / blocks;
  }
  const std::int64_t part = (lengths[segment] + blocks - 1) / blocks, block = at / part;
  Spot spot{.rank = static_cast<int>(block / own), .local = block % own};
  index[dim] = local_at + at % part;
  for (std::size_t d = 0; d < shape.size(); ++d)
    spot.local = spot.local * (d == dim ? local_length : shape[d]) + index[d];
  return spot;
}

class RandomShares : public ::testing::TestWithParam<int> {};

TEST_P(RandomShares, EachElementIsWhereTheDefinitionSays) {
  std::mt19937_64 random(static_cast<std::uint64_t>(GetParam()));
  for (int i = 0; i < 300 && !HasFailure(); ++i) {
    const int ranks = static_cast<int>(draw(random, 2, 9));
    Shape shape = testing::random_shape(random);
    const Cut cut = testing::random_cut(random, shape, ranks);
    if (cut.dim < 0) continue;
    SCOPED_TRACE(to_string(shape) + " cut along " + to_string(cut) + " over " + std::to_string(ranks));
    const TensorShares shares("w", shape, cut, ranks);
    ASSERT_EQ(shares.global_numel(), numel_of(shape));
    EXPECT_EQ(shares.numel() * ranks, shares.blocks() * numel_of(shares.shape()));
    std::int64_t at = 0;
    for (const ShareRun& run : shares.of_parameter(0, shares.global_numel())) {
      EXPECT_EQ(run.global, at);
      EXPECT_GT(run.numel, 0);
      for (std::int64_t k = 0; k < run.numel; ++k) {
        const Spot spot = spot_of(shape, cut, ranks, at + k);
        ASSERT_EQ(spot.rank, run.tensor_rank);
        ASSERT_EQ(spot.local, run.local + k);
      }
      at += run.numel;
    }
    EXPECT_EQ(at, shares.global_numel());
  }
}

// Both directions name the same pairs, also inside any range, and each element has one place.
TEST_P(RandomShares, BothDirectionsAgree) {
  std::mt19937_64 random(static_cast<std::uint64_t>(GetParam()));
  for (int i = 0; i < 300 && !HasFailure(); ++i) {
    const int ranks = static_cast<int>(draw(random, 1, 9));
    Shape shape = testing::random_shape(random);
    const Cut cut = testing::random_cut(random, shape, ranks);
    SCOPED_TRACE(to_string(shape) + " cut along " + to_string(cut) + " over " + std::to_string(ranks));
    const TensorShares shares("w", shape, cut, ranks);
    std::vector<int> had(static_cast<std::size_t>(shares.global_numel()), 0);
    for (int rank = 0; rank < (shares.is_whole() ? 1 : ranks); ++rank) {
      const std::int64_t begin = draw(random, 0, shares.numel());
      Runs parts = shares.of_share(rank, 0, begin);
      std::ranges::copy(shares.of_share(rank, begin, shares.numel()), std::back_inserter(parts));
      EXPECT_TRUE(std::ranges::is_sorted(parts, {}, &ShareRun::local));
      for (const ShareRun& run : parts) {
        EXPECT_EQ(shares.of_parameter(run.global, run.global + run.numel), (Runs{run}));
        EXPECT_EQ(shares.of_share(rank, run.local, run.local + run.numel), (Runs{run}));
        for (std::int64_t k = run.global; k < run.global + run.numel; ++k) ++had[static_cast<std::size_t>(k)];
      }
    }
    EXPECT_EQ(std::ranges::count(had, 1), shares.global_numel());
    const std::int64_t begin = draw(random, 0, shares.global_numel());
    const std::int64_t end = draw(random, begin, shares.global_numel());
    std::int64_t at = begin;
    for (const ShareRun& run : shares.of_parameter(begin, end)) {
      EXPECT_EQ(run.global, at);
      EXPECT_EQ(shares.of_share(run.tensor_rank, run.local, run.local + run.numel), (Runs{run}));
      at += run.numel;
    }
    EXPECT_EQ(at, end);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomShares, ::testing::Range(1, 5));

}  // namespace
}  // namespace tessera
