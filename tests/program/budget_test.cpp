// Budgets: as many resident units as fit and no more, and advice that is true.
#include "tessera/budget.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/program/small_models.h"

namespace tessera::testing {
namespace {

constexpr int kUnits = 8, kShards = 4;

std::vector<StepSpec> specs_at(int stage, int resident_units = 0) {
  StepSpec train{.strategy = {.placements = Placements::of_stage(stage), .resident_units = resident_units},
                 .activations = activations(kUnits),
                 .order = {}};
  StepSpec evaluate = train;
  evaluate.kind = StepKind::evaluate;
  return {train, evaluate};
}

class Budget : public ::testing::Test {
 protected:
  std::int64_t arena_bytes(const std::vector<StepSpec>& specs) const {
    return build_and_plan(layout_, mesh_, specs).plan.space(Space::device).arena_bytes;
  }
  std::string advice(int stage, std::int64_t external_bytes, std::int64_t budget) const {
    const std::vector<StepSpec> specs = specs_at(stage);
    return explain_misfit(layout_, mesh_, specs, build_and_plan(layout_, mesh_, specs).plan,
                          {.device_bytes = budget, .external_bytes = external_bytes});
  }

  Layout layout_{chain(kUnits, 10'000), kShards};
  Mesh mesh_{.shard = kShards};
};

TEST_F(Budget, KeepsAsManyUnitsResidentAsFit) {
  std::int64_t previous = 0;
  for (int units = 0; units <= kUnits; ++units) {
    const std::int64_t bytes = arena_bytes(specs_at(3, units));
    EXPECT_GE(bytes, previous) << units;
    const int fitting = fit_resident_units(layout_, mesh_, specs_at(3), bytes);
    EXPECT_GE(fitting, units);
    EXPECT_LE(arena_bytes(specs_at(3, fitting)), bytes) << units;
    if (bytes > previous) {
      EXPECT_LT(fit_resident_units(layout_, mesh_, specs_at(3), bytes - 1), units);
    }
    previous = bytes;
  }
  EXPECT_GT(previous, arena_bytes(specs_at(3, 0))) << "resident units cost nothing: the test shows nothing";
  EXPECT_EQ(fit_resident_units(layout_, mesh_, specs_at(3), arena_bytes(specs_at(3, 0)) - 1), -1);
}

TEST_F(Budget, NamesTheChangeThatFits) {
  for (int stage = 0; stage < 3; ++stage) {
    const std::int64_t budget = arena_bytes(specs_at(stage + 1));
    const std::int64_t needed = arena_bytes(specs_at(stage));
    ASSERT_GT(needed, budget);
    const std::string text = advice(stage, 0, budget);
    EXPECT_NE(text.find("would fit with stage " + std::to_string(stage + 1)), std::string::npos) << text;
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
  EXPECT_NE(text.find("no change of strategy fits"), std::string::npos) << text;
}

TEST_F(Budget, CountsTheEmbeddersOwnMemory) {
  const std::int64_t budget = arena_bytes(specs_at(1));
  EXPECT_NE(advice(0, 0, budget).find("would fit with stage 1"), std::string::npos);
  EXPECT_EQ(advice(0, 1, budget).find("would fit with stage 1:"), std::string::npos);
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
    const double share = choose_states_on_device(layout_, mesh_, specs, cost, budget.bytes);
    ASSERT_GE(share, 0);
    const Figures& chosen = shares.at(static_cast<std::size_t>(std::lround(share * kUnits)));
    EXPECT_LE(chosen.bytes, budget.bytes);
    for (const Figures& other : shares)
      if (other.bytes <= budget.bytes) {
        EXPECT_LE(chosen.us, other.us);
      }
  }
  EXPECT_EQ(choose_states_on_device(layout_, mesh_, specs, cost, shares.front().bytes - 1), -1);
}

TEST_F(Budget, SaysWhereNothingFits) {
  EXPECT_NE(advice(0, 0, 1000).find("no change of strategy fits"), std::string::npos);
}

// A model whose passes take nearly all of the time, for advice that is told in time.
CostModel slow_passes() {
  return {.flops_per_us = 1.0, .forward_flops = std::vector<double>(kUnits, 1000.0)};
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

TEST_F(Budget, ListsThreeThatFitByTheirTime) {
  for (int stage = 0; stage < 3; ++stage) {
    const std::vector<StepSpec> specs = specs_at(stage);
    const std::int64_t budget = arena_bytes(specs_at(stage + 1));
    const std::vector<Line> lines =
        lines_of(explain_misfit(layout_, mesh_, specs, build_and_plan(layout_, mesh_, specs).plan,
                                {.device_bytes = budget}, slow_passes()));
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
    for (UnitActivations& unit : spec.activations.units) unit.saved_bytes = 1'000'000;
  std::vector<StepSpec> recomputed = specs;
  for (StepSpec& spec : recomputed) spec.strategy.recompute = Recompute::full;
  const std::int64_t budget = arena_bytes(recomputed);
  const std::vector<Line> lines =
      lines_of(explain_misfit(layout_, mesh_, specs, build_and_plan(layout_, mesh_, specs).plan,
                              {.device_bytes = budget}, slow_passes()));
  // What waits on the host is not made again, and its copies hide behind passes as slow as these.
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].changes, "stage 3, offload.activations = host");
  EXPECT_LE(lines[0].bytes, budget);
  EXPECT_NEAR(lines[0].time, 1, 0.01);
  EXPECT_EQ(lines[1].changes, "recompute = full");
  EXPECT_EQ(lines[1].bytes, budget);
  EXPECT_NEAR(lines[1].time, 1 + (kUnits - 1) / (3.0 * kUnits), 0.01);
}

// Neither alone fits, and nothing is named that could stay away.
TEST_F(Budget, NamesChangesThatFitTogetherOnly) {
  std::vector<StepSpec> specs = specs_at(3);
  for (StepSpec& spec : specs)
    for (UnitActivations& unit : spec.activations.units) unit.saved_bytes = 20'000;
  std::vector<StepSpec> both = specs;
  for (StepSpec& spec : both) {
    spec.strategy.recompute = Recompute::full;
    spec.strategy.offload.states = Space::host;
  }
  const MemoryPlan plan = build_and_plan(layout_, mesh_, both).plan;
  const std::string text =
      explain_misfit(layout_, mesh_, specs, build_and_plan(layout_, mesh_, specs).plan,
                     {.device_bytes = plan.space(Space::device).arena_bytes}, slow_passes());
  const std::vector<Line> lines = lines_of(text);
  ASSERT_EQ(lines.size(), 1u) << text;
  EXPECT_EQ(lines[0].changes, "recompute = full, offload.states = host");
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
  EXPECT_NE(text.find("host_memory is " + std::to_string(on_host - 1) + " bytes, but the plan needs " +
                      std::to_string(on_host) + ": 1 bytes are missing"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("device_memory"), std::string::npos) << text;
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

// Without states off the device nothing is left to a next step.
TEST_F(Budget, StatesComeBackWithTheirUpdates) {
  std::vector<StepSpec> specs = specs_at(3);
  for (StepSpec& spec : specs) {
    spec.strategy.offload.states = Space::host;
    spec.strategy.update = UpdateWhen::next;
  }
  const std::string text =
      explain_misfit(layout_, mesh_, specs, build_and_plan(layout_, mesh_, specs).plan, {.host_bytes = 1});
  EXPECT_NE(text.find("would fit with offload.states = device, update = decided"), std::string::npos) << text;
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
    return explain_misfit(layout_, mesh_, specs, build_and_plan(layout_, mesh_, specs).plan, budget);
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
