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

TEST(Strategy, Enumerators) {
  const auto expect_named = [](const char* name, const std::function<void(Strategy&)>& change) {
    Strategy strategy{.placements = Placements::of_stage(3)};
    change(strategy);
    expect_refused(strategy, name);
  };
  expect_named("placements.parameters has the value 2; its enumerators are 0 to 1",
               [](Strategy& s) { s.placements.parameters = static_cast<Placement>(2); });
  expect_named("placements.gradients has", [](Strategy& s) { s.placements.gradients = Placement{5}; });
  expect_named("placements.optimizer_state has",
               [](Strategy& s) { s.placements.optimizer_state = Placement{255}; });
  expect_named("reduce has the value 3", [](Strategy& s) { s.reduce = ReduceWhen{3}; });
  expect_named("reduction has", [](Strategy& s) { s.reduction = Reduction{2}; });
  expect_named("update has", [](Strategy& s) { s.update = UpdateWhen{3}; });
  expect_named("recompute has", [](Strategy& s) { s.recompute = Recompute{3}; });
  expect_named("offload.states has", [](Strategy& s) { s.offload.states = Space{3}; });
  expect_named("offload.parameters has", [](Strategy& s) { s.offload.parameters = Space{3}; });
  expect_named("offload.activations has", [](Strategy& s) { s.offload.activations = Space{3}; });
  expect_named("unit_activations: the `recompute` of a unit has",
               [](Strategy& s) { s.unit_activations = {{.recompute = Recompute{9}}}; });
  expect_named("unit_activations: the `kept` of a unit has",
               [](Strategy& s) { s.unit_activations = {{.kept = Space{9}}}; });
}

TEST(Strategy, ReduceWhen) {
  for (int stage = 0; stage < 4; ++stage) {
    const Placements placements = Placements::of_stage(stage);
    EXPECT_EQ((Strategy{.placements = placements}.reduce_when({.count = 4})), ReduceWhen::each);
    EXPECT_EQ((Strategy{.placements = placements, .reduce = ReduceWhen::automatic}.reduce_when({.count = 4})),
              stage >= 2 ? ReduceWhen::each : ReduceWhen::last);
    EXPECT_EQ((Strategy{.placements = placements, .reduce = ReduceWhen::last}.reduce_when({.count = 2})),
              ReduceWhen::last);
    EXPECT_EQ((Strategy{.placements = placements, .reduce = ReduceWhen::each}.reduce_when({.count = 2})),
              ReduceWhen::each);
    for (ReduceWhen reduce : {ReduceWhen::automatic, ReduceWhen::each, ReduceWhen::last})
      EXPECT_EQ((Strategy{.placements = placements, .reduce = reduce}.reduce_when({.count = 1})),
                ReduceWhen::each)
          << "with one microbatch all choices are one program";
  }
}

}  // namespace
}  // namespace tessera
