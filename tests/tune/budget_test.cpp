// Budgets: as many resident units as fit and no more, and advice that is true.
#include "tessera/budget.h"
#include "tessera/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "tests/program/small_models.h"

namespace tessera::testing {
namespace {

constexpr int kUnits = 8, kShards = 4;

std::vector<StepSpec> specs_at(int stage, int resident_units = 0, int microbatches = 1) {
  StepSpec train{.microbatches = microbatches,
                 .strategy = {.placements = Placements::of_stage(stage),
                              .reduce = ReduceWhen::automatic,  // else stage 2 takes what 1 does
                              .resident_units = resident_units},
                 .activations = activations(kUnits),
                 .order = {}};
  StepSpec evaluate = train;
  evaluate.kind = StepKind::evaluate;
  return {train, evaluate};
}

// Of the plan of one pipeline rank.
std::string explain_misfit(const Layout& layout, const Mesh& mesh, const std::vector<StepSpec>& specs,
                           const MemoryPlan& plan, const MemoryBudget& budget, const CostModel& cost = {}) {
  return tessera::explain_misfit(layout, mesh, specs, std::span(&plan, 1), budget, cost);
}

class Budget : public ::testing::Test {
 protected:
  std::int64_t arena_bytes(const std::vector<StepSpec>& specs) const {
    return build_and_plan(layout_, mesh_, specs).plan.space(Space::device).arena_bytes;
  }
  std::string advice(int stage, std::int64_t external_bytes, std::int64_t budget) const {
    const std::vector<StepSpec> specs = specs_at(stage);
    return misfit(specs, {.device_bytes = budget, .external_bytes = external_bytes});
  }
  std::string misfit(const std::vector<StepSpec>& specs, const MemoryBudget& budget,
                     const CostModel& cost = {}) const {
    return explain_misfit(layout_, mesh_, specs, build_and_plan(layout_, mesh_, specs).plan, budget, cost);
  }

  Layout layout_{chain(kUnits, 10'000), kShards};
  Mesh mesh_{.shard = kShards};
};

TEST_F(Budget, KeepsAsManyUnitsResidentAsFit) {
  std::int64_t previous = 0;
  for (int units = 0; units <= kUnits; ++units) {
    const std::int64_t bytes = arena_bytes(specs_at(3, units));
    EXPECT_GE(bytes, previous) << units;
    const int fitting = fit_resident_units(layout_, mesh_, specs_at(3), {.device_bytes = bytes});
    EXPECT_GE(fitting, units);
    EXPECT_LE(arena_bytes(specs_at(3, fitting)), bytes) << units;
    if (bytes > previous) {
      EXPECT_LT(fit_resident_units(layout_, mesh_, specs_at(3), {.device_bytes = bytes - 1}), units);
    }
    previous = bytes;
  }
  EXPECT_GT(previous, arena_bytes(specs_at(3, 0))) << "resident units cost nothing: the test shows nothing";
  EXPECT_EQ(
      fit_resident_units(layout_, mesh_, specs_at(3), {.device_bytes = arena_bytes(specs_at(3, 0)) - 1}), -1);
}

TEST_F(Budget, NamesTheChangeThatFits) {
  for (int stage = 0; stage < 3; ++stage) {
    const int microbatches = stage == 1 ? 2 : 1;  // of one, stage 2 takes what 1 does
    const std::int64_t budget = arena_bytes(specs_at(stage + 1, 0, microbatches));
    const std::int64_t needed = arena_bytes(specs_at(stage, 0, microbatches));
    ASSERT_GT(needed, budget);
    const std::string text = misfit(specs_at(stage, 0, microbatches), {.device_bytes = budget});
    EXPECT_NE(text.find("would fit with strategy.stage = " + std::to_string(stage + 1)), std::string::npos)
        << text;
    EXPECT_NE(text.find(std::to_string(needed - budget) + " bytes are missing"), std::string::npos) << text;
  }
}

// On a mesh where what it would need first is refused.
TEST_F(Budget, AdvisesNothingThatTheMeshRefuses) {
  std::vector<StepSpec> specs = specs_at(3);
  for (StepSpec& spec : specs)
    spec.strategy.state_over_replicas = spec.strategy.parameters_over_replicas = true;
  const Mesh mesh{.replicate = 2};
  const Layout layout(chain(kUnits, 10'000), 1, 2);
  const std::string text =
      explain_misfit(layout, mesh, specs, build_and_plan(layout, mesh, specs).plan, {.device_bytes = 1});
  EXPECT_NE(text.find("no change that was tried fits"), std::string::npos) << text;
}

TEST_F(Budget, CountsTheEmbeddersOwnMemory) {
  const std::int64_t budget = arena_bytes(specs_at(1));
  EXPECT_NE(advice(0, 0, budget).find("would fit with strategy.stage = 1"), std::string::npos);
  EXPECT_EQ(advice(0, 1, budget).find("would fit with strategy.stage = 1:"), std::string::npos);
}

// With parameters off the device, one that stays is not brought again: more units may take less. A chain
// whose last unit is the smallest, so that counts in between fit what neither none nor all of them do.
struct Offloaded {
  Offloaded(int units, int prefetch) {
    std::vector<UnitSpec> specs;
    for (int unit = 0; unit < units; ++unit) specs.push_back(chain(unit + 1, 9'000 - 150 * unit).back());
    layout = Layout(specs, kShards);
    StepSpec train{.strategy = {.placements = Placements::of_stage(3), .prefetch = prefetch},
                   .activations = activations(units),
                   .order = {}};
    for (int unit = 0; unit < units; ++unit)
      train.activations.units[unit].values[UnitGraph::kSaved].bytes = 2048 * (unit % 5);
    train.strategy.offload = {.states = Space::host, .parameters = Space::host, .activations = Space::host};
    of_steps = {train};
  }
  std::vector<std::int64_t> by_count() const {
    IdVector<std::int64_t> bytes;
    for (int count = 0; count <= layout.units().count(); ++count) {
      std::vector<StepSpec> specs = of_steps;
      specs[0].strategy.resident_units = count;
      bytes.push_back(build_and_plan(layout, mesh, specs).plan.space(Space::device).arena_bytes);
    }
    return bytes;
  }
  int fitting(const MemoryBudget& budget) const { return fit_resident_units(layout, mesh, of_steps, budget); }

  Layout layout{chain(1, 1), 1};
  Mesh mesh{.shard = kShards};
  std::vector<StepSpec> of_steps;
};

TEST_F(Budget, FindsTheMostResidentUnitsWhereMoreTakeLess) {
  bool up = false, down = false, only_between = false;
  for (const int units : {3, 6, 10})
    for (const int prefetch : {0, 1, 2}) {
      const Offloaded of(units, prefetch);
      const IdVector<std::int64_t> bytes = of.by_count();
      for (std::size_t k = 1; k < bytes.size(); ++k) {
        up |= bytes[k] > bytes[k - 1];
        down |= bytes[k] < bytes[k - 1];
      }
      for (const std::int64_t at : bytes)
        for (const std::int64_t budget : {at - 1, at}) {
          int most = -1;
          for (int count = 0; count <= units; ++count)
            if (bytes[count] <= budget) most = count;
          EXPECT_EQ(of.fitting({.device_bytes = budget}), most)
              << units << ", " << prefetch << ", " << budget;
          only_between |= most > 0 && most < units && bytes[0] > budget;
        }
    }
  EXPECT_TRUE(up && down && only_between) << "the arenas are monotonic: the test shows nothing";
}

// Of many units: a count that fits, and one more does not.
TEST_F(Budget, BoundsThePlansOfManyUnits) {
  const Offloaded of(50, 1);
  const IdVector<std::int64_t> bytes = of.by_count();
  const auto [least, most] = std::ranges::minmax(bytes);
  for (const std::int64_t budget : {least, (least + bytes[0]) / 2, bytes[0], (bytes[0] + most) / 2, most}) {
    const int count = of.fitting({.device_bytes = budget});
    if (count < 0) {
      EXPECT_LT(budget, bytes[0]);
      continue;
    }
    EXPECT_LE(bytes[count], budget);
    if (count < 50) {
      EXPECT_GT(bytes[static_cast<std::size_t>(count) + 1], budget);
    }
  }
}

TEST_F(Budget, ResidentUnitsKeepWithinTheHostsBudget) {
  const Offloaded of(6, 1);
  const std::int64_t on_host =
      build_and_plan(of.layout, of.mesh, of.of_steps).plan.space(Space::host).arena_bytes;
  EXPECT_GE(of.fitting({.host_bytes = on_host}), 0);
  EXPECT_EQ(of.fitting({.host_bytes = on_host / 2}), -1);
}

// Beside every share: none that fits takes less time.
TEST_F(Budget, ChoosesTheShareOfStatesOnTheDevice) {
  const CostModel cost{.memory_bytes_per_us = 200e3, .forward_flops = std::vector<double>(kUnits, 1e6)};
  std::vector<StepSpec> specs = specs_at(2);
  for (StepSpec& spec : specs) spec.strategy.offload.states = Space::host;
  struct Figures {
    std::int64_t bytes;
    double us;
  };
  std::vector<Figures> shares;
  for (int count = 0; count <= kUnits; ++count) {
    for (StepSpec& spec : specs) spec.strategy.offload.states_on_device = static_cast<double>(count) / kUnits;
    const PlannedPrograms planned = build_and_plan(layout_, mesh_, specs);
    shares.push_back({planned.plan.space(Space::device).arena_bytes,
                      simulate(planned.programs[0], layout_, mesh_, cost).total_us});
  }
  EXPECT_GT(shares.back().bytes, shares.front().bytes);
  EXPECT_LT(shares.back().us, shares.front().us) << "the device is no faster: the test shows nothing";
  for (const Figures& budget : shares) {
    const double share = choose_states_on_device(layout_, mesh_, specs, cost, {.device_bytes = budget.bytes});
    ASSERT_GE(share, 0);
    const Figures& chosen = shares.at(static_cast<std::size_t>(std::lround(share * kUnits)));
    EXPECT_LE(chosen.bytes, budget.bytes);
    for (const Figures& other : shares)
      if (other.bytes <= budget.bytes) {
        EXPECT_LE(chosen.us, other.us);
      }
  }
  EXPECT_EQ(choose_states_on_device(layout_, mesh_, specs, cost, {.device_bytes = shares.front().bytes - 1}),
            -1);
}

// The same with both budgets: what the device has no room for the host may have, and the other way round.
TEST_F(Budget, ChoosesAShareThatTheHostHoldsToo) {
  const CostModel cost{.memory_bytes_per_us = 200e3, .forward_flops = std::vector<double>(kUnits, 1e6)};
  std::vector<StepSpec> specs = specs_at(2);
  for (StepSpec& spec : specs) spec.strategy.offload.states = Space::host;
  std::vector<MemoryPlan> plans;
  std::vector<double> us;
  for (int count = 0; count <= kUnits; ++count) {
    for (StepSpec& spec : specs) spec.strategy.offload.states_on_device = static_cast<double>(count) / kUnits;
    const PlannedPrograms planned = build_and_plan(layout_, mesh_, specs);
    plans.push_back(planned.plan);
    us.push_back(simulate(planned.programs[0], layout_, mesh_, cost).total_us);
  }
  int not_none = 0;
  for (const MemoryPlan& device : plans)
    for (const MemoryPlan& host : plans) {
      const MemoryBudget budget{.device_bytes = device.space(Space::device).arena_bytes,
                                .host_bytes = host.space(Space::host).arena_bytes};
      const double share = choose_states_on_device(layout_, mesh_, specs, cost, budget);
      const bool any = std::ranges::any_of(plans, [&](const MemoryPlan& plan) { return budget.holds(plan); });
      ASSERT_EQ(share >= 0, any);
      if (!any) continue;
      const auto chosen = static_cast<std::size_t>(std::lround(share * kUnits));
      EXPECT_TRUE(budget.holds(plans[chosen]));
      for (std::size_t other = 0; other < plans.size(); ++other)
        if (budget.holds(plans[other])) {
          EXPECT_LE(us[chosen], us[other]);
        }
      not_none += !budget.holds(plans[0]);
    }
  EXPECT_GT(not_none, 0) << "no states on the device fit as well: the test shows nothing";
}

TEST_F(Budget, MissesWhatBothSpacesLack) {
  std::vector<StepSpec> specs = specs_at(2);
  for (StepSpec& spec : specs) spec.strategy.offload.states = Space::host;
  const MemoryPlan plan = build_and_plan(layout_, mesh_, specs).plan;
  const std::int64_t device = plan.space(Space::device).arena_bytes;
  const std::int64_t host = plan.space(Space::host).arena_bytes;
  EXPECT_EQ((MemoryBudget{.device_bytes = device - 5, .host_bytes = host - 7}).missing_bytes(plan), 12);
  EXPECT_EQ(
      (MemoryBudget{.device_bytes = device, .host_bytes = host - 7, .external_bytes = 3}).missing_bytes(plan),
      10);
  EXPECT_EQ((MemoryBudget{.device_bytes = device + 5, .host_bytes = host + 7}).missing_bytes(plan), 0);
  EXPECT_EQ(MemoryBudget{}.missing_bytes(plan), 0);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_GT((MemoryBudget{.device_bytes = 1, .host_bytes = 1, .external_bytes = kMost}).missing_bytes(plan),
            0);
}

TEST_F(Budget, SaysWhereNothingFits) {
  EXPECT_NE(advice(0, 0, 1000).find("no change that was tried fits"), std::string::npos);
}

// A model whose passes take nearly all of the time, for advice that is told in time.
CostModel slow_passes(int units = kUnits) {
  return {.flops_per_us = 1.0, .forward_flops = std::vector<double>(static_cast<std::size_t>(units), 1000.0)};
}

// What each line of the advice names, and the step's time with it.
struct Line {
  std::string changes;
  std::int64_t bytes = 0;
  double time = 0;
};
// Of "CHANGES: N bytes[, N on the host][, N on the disk], F × the step's time".
Line line_of(const std::string& text) {
  const std::size_t colon = text.find(": ");
  Line line{.changes = text.substr(0, colon)};
  std::vector<std::string> figures;
  for (std::size_t begin = colon + 2, end = 0; end != std::string::npos; begin = end + 2) {
    end = text.find(", ", begin);
    figures.push_back(text.substr(begin, end - begin));
  }
  std::size_t digits = 0;
  line.bytes = std::stoll(figures.front(), &digits);
  EXPECT_EQ(figures.front().substr(digits), " bytes") << text;
  line.time = std::stod(figures.back(), &digits);
  EXPECT_EQ(figures.back().substr(digits), " × the step's time") << text;
  for (std::size_t k = 1; k + 1 < figures.size(); ++k)
    EXPECT_TRUE(figures[k].ends_with(" on the host") || figures[k].ends_with(" on the disk")) << text;
  return line;
}

std::vector<Line> lines_of(const std::string& text) {
  static const std::string kBegin = "would fit with ", kEnd = "the step's time";
  std::vector<Line> lines;
  for (std::size_t at = text.find(kBegin); at != std::string::npos; at = text.find(kBegin, at + 1)) {
    const std::size_t begin = at + kBegin.size(), end = text.find(kEnd, begin) + kEnd.size();
    lines.push_back(line_of(text.substr(begin, end - begin)));
  }
  return lines;
}

Line line_with(const std::string& changes, const std::vector<Line>& lines) {
  const auto found = std::ranges::find(lines, changes, &Line::changes);
  if (found != lines.end()) return *found;
  ADD_FAILURE() << "no line says: " << changes;
  return {};
}

TEST_F(Budget, ListsThreeThatFitByTheirTime) {
  for (int stage = 0; stage < 3; ++stage) {
    const std::vector<StepSpec> specs = specs_at(stage);
    const std::int64_t budget = arena_bytes(specs_at(stage + 1));
    const std::vector<Line> lines = lines_of(misfit(specs, {.device_bytes = budget}, slow_passes()));
    ASSERT_GE(lines.size(), 2u) << stage;
    EXPECT_LE(lines.size(), 3u);
    double before = 0;
    for (const Line& line : lines) {
      EXPECT_LE(line.bytes, budget) << line.changes;
      EXPECT_GE(line.time, before) << line.changes;
      before = line.time;
    }
  }
}

// Full recompute repeats the forward, a third of each unit's time, but for the last unit, whose backward
// follows at once.
TEST_F(Budget, TellsWhatAChangeCosts) {
  std::vector<StepSpec> specs = specs_at(0);
  for (StepSpec& spec : specs)
    for (UnitGraph& unit : spec.activations.units) unit.values[UnitGraph::kSaved].bytes = 1'000'000;
  std::vector<StepSpec> recomputed = specs;
  for (StepSpec& spec : recomputed) spec.strategy.recompute = Recompute::full;
  const std::int64_t budget = arena_bytes(recomputed);
  const std::vector<Line> lines = lines_of(misfit(specs, {.device_bytes = budget}, slow_passes()));
  // What waits on the host is not made again, and its copies hide behind passes as slow as these.
  const Line waiting = line_with("strategy.stage = 3, offload.activations = host", lines);
  EXPECT_LE(waiting.bytes, budget);
  EXPECT_NEAR(waiting.time, 1, 0.01);
  const Line made_again = line_with("strategy.recompute = full", lines);
  EXPECT_EQ(made_again.bytes, budget);
  EXPECT_NEAR(made_again.time, 1 + (kUnits - 1) / (3.0 * kUnits), 0.01);
}

// Every count of fewer units fits: the fastest of them is one of the changes, not all three.
TEST_F(Budget, NamesOneCountOfResidentUnits) {
  std::vector<StepSpec> specs = specs_at(3);
  for (StepSpec& spec : specs) {
    spec.strategy.resident_units = kUnits;
    spec.strategy.offload = {.states = Space::host, .parameters = Space::host, .activations = Space::host};
  }
  std::vector<StepSpec> fewer = specs;
  for (StepSpec& spec : fewer) spec.strategy.resident_units = kUnits * 3 / 4;
  const std::vector<Line> lines =
      lines_of(misfit(specs, {.device_bytes = arena_bytes(fewer)}, slow_passes()));
  EXPECT_EQ(
      std::ranges::count_if(
          lines, [](const Line& line) { return line.changes.starts_with("strategy.resident_units = "); }),
      1);
}

// Neither alone fits, and nothing is named that could stay away.
TEST_F(Budget, NamesChangesThatFitTogetherOnly) {
  std::vector<StepSpec> specs = specs_at(3);
  for (StepSpec& spec : specs)
    for (UnitGraph& unit : spec.activations.units) unit.values[UnitGraph::kSaved].bytes = 20'000;
  std::vector<StepSpec> both = specs;
  for (StepSpec& spec : both) {
    spec.strategy.recompute = Recompute::full;
    spec.strategy.offload.states = Space::host;
  }
  const MemoryPlan plan = build_and_plan(layout_, mesh_, both).plan;
  const std::string text =
      misfit(specs, {.device_bytes = plan.space(Space::device).arena_bytes}, slow_passes());
  const std::vector<Line> lines = lines_of(text);
  for (const Line& line : lines) EXPECT_NE(line.changes.find(", "), std::string::npos) << line.changes;
  EXPECT_EQ(line_with("strategy.recompute = full, offload.states = host", lines).bytes,
            plan.space(Space::device).arena_bytes);
  EXPECT_NE(text.find(std::to_string(plan.space(Space::host).arena_bytes) + " on the host"),
            std::string::npos);
}

// The host's arena has a budget of its own: states that exceed it go to the disk, or back.
TEST_F(Budget, OfTheHostIsKeptToo) {
  std::vector<StepSpec> specs = specs_at(3);
  for (StepSpec& spec : specs) spec.strategy.offload.states = Space::host;
  const MemoryPlan plan = build_and_plan(layout_, mesh_, specs).plan;
  const std::int64_t on_host = plan.space(Space::host).arena_bytes;
  EXPECT_TRUE((MemoryBudget{.host_bytes = on_host}).holds(plan));
  EXPECT_FALSE((MemoryBudget{.host_bytes = on_host - 1}).holds(plan));
  EXPECT_TRUE((MemoryBudget{}).holds(plan));
  const std::string text = explain_misfit(layout_, mesh_, specs, plan, {.host_bytes = on_host - 1});
  EXPECT_NE(text.find("budget.host_bytes is " + std::to_string(on_host - 1) + " bytes, but the plan needs " +
                      std::to_string(on_host) + ": 1 bytes are missing"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("device_bytes"), std::string::npos) << text;
  EXPECT_NE(text.find("would fit with offload.states = device"), std::string::npos) << text;
  EXPECT_NE(text.find("would fit with offload.states = disk"), std::string::npos) << text;
  // With as little on the device as now, only the disk is left.
  const std::string both =
      explain_misfit(layout_, mesh_, specs, plan,
                     {.device_bytes = plan.space(Space::device).arena_bytes, .host_bytes = on_host - 1});
  EXPECT_EQ(both.find("= device"), std::string::npos) << both;
  EXPECT_NE(both.find("would fit with offload.states = disk"), std::string::npos) << both;
}

// States that are on the disk already: parameters can follow them, and less of them be on the way at a time.
TEST_F(Budget, OfTheHostIsMetByTheDisk) {
  std::vector<StepSpec> specs = specs_at(3);
  for (StepSpec& spec : specs)
    spec.strategy.offload = {.states = Space::disk, .parameters = Space::host, .staged = 4};
  const auto planned = [&](Space parameters, int staged) {
    std::vector<StepSpec> changed = specs;
    for (StepSpec& spec : changed) {
      spec.strategy.offload.parameters = parameters;
      spec.strategy.offload.staged = staged;
    }
    return build_and_plan(layout_, mesh_, changed).plan;
  };
  const MemoryPlan plan = planned(Space::host, 4);
  const auto advice_for = [&](const MemoryPlan& least) {
    // The device keeps what it has, so that nothing can go there.
    return explain_misfit(layout_, mesh_, specs, plan,
                          {.device_bytes = std::max(plan.space(Space::device).arena_bytes,
                                                    least.space(Space::device).arena_bytes),
                           .host_bytes = least.space(Space::host).arena_bytes});
  };
  const std::string moved = advice_for(planned(Space::disk, 4));
  EXPECT_NE(moved.find("would fit with offload.parameters = disk"), std::string::npos) << moved;
  const std::string staged = advice_for(planned(Space::host, 1));
  EXPECT_NE(staged.find("would fit with offload.staged = 1"), std::string::npos) << staged;
  const std::string both = advice_for(planned(Space::disk, 1));
  EXPECT_NE(both.find("would fit with offload.parameters = disk, offload.staged = 1"), std::string::npos)
      << both;
}

// Where the host is what lacks room, nothing goes there, and what is there comes back.
TEST_F(Budget, OfTheHostIsMetByTheDevice) {
  std::vector<StepSpec> specs = specs_at(3);
  for (StepSpec& spec : specs) spec.strategy.offload.activations = Space::host;
  const auto plan_of = [&](std::vector<StepSpec> changed, const auto& change) {
    for (StepSpec& spec : changed) change(spec.strategy);
    return build_and_plan(layout_, mesh_, changed).plan;
  };
  const MemoryPlan plan = plan_of(specs, [](Strategy&) {});
  const std::string back = explain_misfit(layout_, mesh_, specs, plan, {.host_bytes = 1});
  EXPECT_NE(back.find("would fit with offload.activations = device: "), std::string::npos) << back;
  EXPECT_EQ(back.find("host:"), std::string::npos) << back;
  // The device has less room than activations need there, but for recomputed ones.
  const MemoryPlan less = plan_of(specs, [](Strategy& strategy) {
    strategy.offload.activations = Space::device;
    strategy.recompute = Recompute::full;
  });
  const std::string both = explain_misfit(
      layout_, mesh_, specs, plan, {.device_bytes = less.space(Space::device).arena_bytes, .host_bytes = 1});
  EXPECT_NE(both.find("would fit with strategy.recompute = full, offload.activations = device: "),
            std::string::npos)
      << both;
}

// Chosen for each unit: the words say what stands in place of all of it.
TEST_F(Budget, OneWordForAllUnitsSaysWhereToo) {
  std::vector<StepSpec> specs = specs_at(3);
  for (StepSpec& spec : specs)
    for (UnitGraph& unit : spec.activations.units) unit.values[UnitGraph::kSaved].bytes = 200'000;
  std::vector<StepSpec> full = specs;
  for (StepSpec& spec : full) spec.strategy.recompute = Recompute::full;
  for (StepSpec& spec : specs)
    spec.strategy.unit_activations.assign(kUnits, {.recompute = Recompute::selective});
  const std::string less = misfit(specs, {.device_bytes = arena_bytes(full), .host_bytes = 1}, slow_passes());
  EXPECT_EQ(line_with("strategy.recompute = full, offload.activations = device", lines_of(less)).bytes,
            arena_bytes(full));
  for (StepSpec& spec : specs)
    for (ActivationChoice& choice : spec.strategy.unit_activations) choice.kept = Space::host;
  const std::string back = misfit(specs, {.host_bytes = 1}, slow_passes());
  EXPECT_GT(line_with("offload.activations = device", lines_of(back)).bytes, arena_bytes(full));
}

// Parameters on their way down and up wait on the host also where the states live there.
TEST_F(Budget, LessIsStagedOfStatesOnTheHost) {
  std::vector<StepSpec> specs = specs_at(3);
  for (StepSpec& spec : specs) spec.strategy.offload = {.states = Space::host, .staged = 50};
  std::vector<StepSpec> one = specs;
  for (StepSpec& spec : one) spec.strategy.offload.staged = 1;
  const MemoryPlan plan = build_and_plan(layout_, mesh_, specs).plan;
  const MemoryPlan least = build_and_plan(layout_, mesh_, one).plan;
  ASSERT_LT(least.space(Space::host).arena_bytes, plan.space(Space::host).arena_bytes);
  const std::string text = explain_misfit(layout_, mesh_, specs, plan,
                                          {.device_bytes = plan.space(Space::device).arena_bytes,
                                           .host_bytes = least.space(Space::host).arena_bytes});
  EXPECT_NE(text.find("would fit with offload.staged = 1: "), std::string::npos) << text;
}

TEST_F(Budget, NamesMoreResidentUnitsWhereTheyTakeLess) {
  int named = 0;
  for (const int prefetch : {0, 1, 2}) {
    const Offloaded of(6, prefetch);
    const IdVector<std::int64_t> bytes = of.by_count();
    if (std::ranges::min(bytes) == bytes[0]) continue;
    const std::vector<Line> lines = lines_of(
        explain_misfit(of.layout, of.mesh, of.of_steps, build_and_plan(of.layout, of.mesh, of.of_steps).plan,
                       {.device_bytes = bytes[0] - 1}, slow_passes(6)));
    const auto resident = std::ranges::find_if(
        lines, [](const Line& line) { return line.changes.starts_with("strategy.resident_units = "); });
    ASSERT_NE(resident, lines.end()) << prefetch;
    const auto count = std::stoul(resident->changes.substr(std::string("strategy.resident_units = ").size()));
    EXPECT_EQ(resident->bytes, bytes.at(count));
    EXPECT_LT(resident->time, 1.005) << "what stays is not gathered again";
    ++named;
  }
  EXPECT_GT(named, 0) << "more units never take less: the test shows nothing";
}

// States to the host would break the one budget, on the device the other: some of the units'.
TEST_F(Budget, NamesAShareOfStatesBetweenTwoBudgets) {
  std::vector<StepSpec> specs = specs_at(3);
  for (StepSpec& spec : specs) spec.strategy.offload.states = Space::host;
  std::vector<StepSpec> half = specs;
  for (StepSpec& spec : half) spec.strategy.offload.states_on_device = 0.5;
  const MemoryPlan plan = build_and_plan(layout_, mesh_, half).plan;
  const std::string text = misfit(specs, {.device_bytes = plan.space(Space::device).arena_bytes,
                                          .host_bytes = plan.space(Space::host).arena_bytes});
  EXPECT_NE(text.find("would fit with offload.states_on_device = 0.5: "), std::string::npos) << text;
}

// Without states off the device nothing is left to a next step.
TEST_F(Budget, StatesComeBackWithTheirUpdates) {
  std::vector<StepSpec> specs = specs_at(3);
  for (StepSpec& spec : specs) {
    spec.strategy.offload.states = Space::host;
    spec.strategy.update = UpdateWhen::next;
  }
  const std::string text = misfit(specs, {.host_bytes = 1});
  EXPECT_NE(text.find("would fit with offload.states = device, strategy.update = decided"), std::string::npos)
      << text;
}

// A line names all that it changes: with these words in force, and nothing else changed, the plan has its
// bytes.
TEST_F(Budget, TellsOfStatesThatStayedOnTheDevice) {
  const auto specs_with = [&](Space states, double on_device) {
    std::vector<StepSpec> specs = specs_at(3);
    for (StepSpec& spec : specs) spec.strategy.offload = {.states = states, .states_on_device = on_device};
    return specs;
  };
  const auto advice = [&](Space from, double on_device, const MemoryBudget& budget) {
    const std::vector<StepSpec> specs = specs_with(from, on_device);
    return misfit(specs, budget);
  };
  const std::int64_t least = arena_bytes(specs_with(Space::disk, 0.0));
  const std::string moved = advice(Space::disk, 0.5, {.device_bytes = least});
  EXPECT_NE(moved.find("would fit with offload.states_on_device = 0: " + std::to_string(least) + " bytes"),
            std::string::npos)
      << moved;
  const std::string back = advice(Space::host, 0.5, {.host_bytes = 1});
  EXPECT_NE(back.find("would fit with offload.states = device, offload.states_on_device = 0: "),
            std::string::npos)
      << back;
}

TEST_F(Budget, TheTableAddsUpToTheArena) {
  const MemoryPlan plan = build_and_plan(layout_, mesh_, specs_at(2)).plan;
  std::int64_t sum = plan.space(Space::device).arena_bytes - plan.space(Space::device).live_peak_bytes;
  for (std::int64_t bytes : plan.space(Space::device).at_peak) sum += bytes;
  EXPECT_EQ(sum, plan.space(Space::device).arena_bytes);
  EXPECT_NE(describe_plan(plan).find(std::to_string(sum)), std::string::npos);
}

}  // namespace
}  // namespace tessera::testing
