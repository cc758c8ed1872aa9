#include "tessera/strategy.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera {
namespace {

constexpr auto kSharded = Placement::sharded;
constexpr auto kReplicated = Placement::replicated;

TEST(Strategy, AStageIsThreePlacements) {
  EXPECT_EQ(Placements::of_stage(0), (Placements{kReplicated, kReplicated, kReplicated}));
  EXPECT_EQ(Placements::of_stage(1), (Placements{kReplicated, kReplicated, kSharded}));
  EXPECT_EQ(Placements::of_stage(2), (Placements{kReplicated, kSharded, kSharded}));
  EXPECT_EQ(Placements::of_stage(3), (Placements{kSharded, kSharded, kSharded}));
  EXPECT_THROW(Placements::of_stage(-1), UsageError);
  EXPECT_THROW(Placements::of_stage(4), UsageError);
}

std::string refusal(const Strategy& strategy) {
  try {
    strategy.check();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

void expect_refused(const Strategy& strategy, const std::string& start) {
  EXPECT_TRUE(refusal(strategy).starts_with(start)) << refusal(strategy);
}

// Of the eight combinations of placements, the four stages are accepted and no other.
TEST(Strategy, PlacementsAreMonotone) {
  int accepted = 0;
  for (int bits = 0; bits < 8; ++bits) {
    const Strategy strategy{.placements = {static_cast<Placement>(bits & 1),
                                           static_cast<Placement>(bits >> 1 & 1),
                                           static_cast<Placement>(bits >> 2)}};
    accepted += refusal(strategy) == "accepted";
  }
  EXPECT_EQ(accepted, 4);
  for (int stage = 0; stage < 4; ++stage)
    EXPECT_EQ(refusal({.placements = Placements::of_stage(stage)}), "accepted");
  expect_refused({.placements = {kSharded, kReplicated, kSharded}}, "placements.gradients is replicated");
  expect_refused({.placements = {kReplicated, kSharded, kReplicated}},
                 "placements.optimizer_state is replicated");
}

TEST(Strategy, Counts) {
  expect_refused({.placements = Placements::of_stage(3), .prefetch = -1},
                 "prefetch is -1; it must be 0 or more");
  expect_refused({.placements = Placements::of_stage(3), .resident_units = -2},
                 "resident_units is -2; it must be 0 or more");
  expect_refused({.placements = Placements::of_stage(2), .resident_units = 1},
                 "resident_units is 1 while placements.parameters is replicated");
  EXPECT_EQ(refusal({.placements = Placements::of_stage(3), .prefetch = 0, .resident_units = 3}), "accepted");
}

TEST(Strategy, ReduceWhen) {
  for (int stage = 0; stage < 4; ++stage) {
    const Placements placements = Placements::of_stage(stage);
    EXPECT_EQ((Strategy{.placements = placements}.reduce_when(4)),
              stage >= 2 ? ReduceWhen::each : ReduceWhen::last);
    EXPECT_EQ((Strategy{.placements = placements, .reduce = ReduceWhen::last}.reduce_when(2)),
              ReduceWhen::last);
    EXPECT_EQ((Strategy{.placements = placements, .reduce = ReduceWhen::each}.reduce_when(2)),
              ReduceWhen::each);
    for (ReduceWhen reduce : {ReduceWhen::automatic, ReduceWhen::each, ReduceWhen::last})
      EXPECT_EQ((Strategy{.placements = placements, .reduce = reduce}.reduce_when(1)), ReduceWhen::each)
          << "with one microbatch all choices are one program";
  }
}

}  // namespace
}  // namespace tessera
