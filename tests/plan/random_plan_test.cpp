// Random programs of large worlds: proved on all ranks, of the bytes that docs/memory.md says, and simulated
// in times that move as they should. TESSERA_SEEDS=FROM:COUNT runs other seeds than the few of every test
// run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "src/simulate/step_time.h"
#include "tessera/numeric_differences.h"
#include "tests/plan/advice.h"
#include "tests/program/mesh_programs.h"
#include "tests/program/random_world.h"
#include "tests/program/seeds.h"

namespace tessera::testing {
namespace {

// How much slower the choice within more memory may be: the choices are searched for, not proved the best.
constexpr double kSearchMisses = 1.05;

// docs/memory.md, "What is allocated": what a pipeline rank holds between steps, wherever it lies.
void expect_state_bytes(const Case& of, const Layout& layout, const Program& program) {
  const Strategy& strategy = of.specs[0].strategy;
  const Partition partition(static_cast<int>(of.units.size()), of.mesh.pipeline, strategy.pipeline);
  const bool one_shard = of.mesh.shard == 1;
  const auto part = [&](Placement placement, bool sliced, const Flat& flat) {
    const int shards = placement == Placement::sharded && !one_shard ? of.mesh.shard : 1;
    return flat.padded_numel / shards / (sliced && of.mesh.replicate > 1 ? of.mesh.replicate : 1);
  };
  CategoryBytes expected{}, found{};
  for (FlatId id = 0; id < layout.flats().count(); ++id) {
    bool held = partition.rank_of(layout.flat(id).unit) == program.pipeline_rank;
    for (UnitId unit = 0; unit < static_cast<UnitId>(of.units.size()); ++unit)
      held |= partition.rank_of(unit) == program.pipeline_rank &&
              std::ranges::count(layout.flats_used_by(unit), id) > 0;
    if (!held) continue;
    const Flat& flat = layout.flat(id);
    const Placements& placed = strategy.placements;
    expected[static_cast<std::size_t>(Category::parameters)] +=
        part(placed.parameters, strategy.parameters_over_replicas && !one_shard, flat) * bytes_of(flat.dtype);
    if (!flat.trainable) continue;
    const std::int64_t bytes =
        of.specs[0].moments * bytes_of(of.specs[0].moment_type) + (flat.dtype == DType::fp32 ? 0 : 4);
    expected[static_cast<std::size_t>(Category::optimizer_state)] +=
        part(placed.optimizer_state, strategy.state_over_replicas, flat) * bytes;
  }
  for (const Buffer& buffer : program.buffers)
    if (buffer.persistent) found[static_cast<std::size_t>(buffer.category)] += buffer.bytes;
  for (const Category category : {Category::parameters, Category::optimizer_state})
    EXPECT_EQ(found[static_cast<std::size_t>(category)], expected[static_cast<std::size_t>(category)])
        << name_of(category) << " of pipeline rank " << program.pipeline_rank;
}

void expect_sound_plan(const MemoryPlan& plan) {
  for (const Space which : {Space::device, Space::host, Space::disk}) {
    const SpacePlan& space = plan.space(which);
    EXPECT_LE(space.live_peak_bytes, space.bound_bytes);
    EXPECT_LE(space.bound_bytes, round_up(space.arena_bytes, alignment_of(which)));
    EXPECT_LE(space.persistent_bytes, space.live_peak_bytes);
  }
}

// Whatever becomes faster, a step does not become slower.
void expect_times_move_as_they_should(const World& world, const CostModel& cost) {
  const double time = world.time(cost);
  EXPECT_TRUE(std::isfinite(time) && time >= 0) << time;
  if (world.mesh.world() <= 64) {
    EXPECT_DOUBLE_EQ(world.time(cost, Folding::each_rank), time);
  }
  const auto expect_no_slower = [&](const char* what, const std::function<void(CostModel&)>& change) {
    CostModel faster = cost;
    change(faster);
    EXPECT_LE(world.time(faster), time * (1 + 1e-9)) << what;
  };
  expect_no_slower("links", [](CostModel& c) { c.cluster.inside.bytes_per_us *= 3; });
  expect_no_slower("latency", [](CostModel& c) { c.cluster.between.alpha_us /= 3; });
  expect_no_slower("operations", [](CostModel& c) { c.flops_per_us *= 3; });
  expect_no_slower("memory", [](CostModel& c) { c.memory_bytes_per_us *= 3; });
  expect_no_slower("the host's memory", [](CostModel& c) { c.host_memory_bytes_per_us *= 3; });
  expect_no_slower("the host's link", [](CostModel& c) { c.host_link_bytes_per_us *= 3; });
  expect_no_slower("the disk", [](CostModel& c) { c.disk_bytes_per_us *= 3; });
}

std::int64_t fullest(const World& world) {
  std::int64_t most = 0;
  for (const PlannedPrograms& rank : world.planned)
    most = std::max(most, rank.plan.space(Space::device).arena_bytes);
  return most;
}

// What the automatic choices make short: the training steps of all ranks.
double time_of(const Case& of, const World& world) {
  double us = 0;
  for (std::size_t program = 0; program < of.specs.size(); ++program) {
    if (of.specs[program].kind != StepKind::train) continue;
    std::vector<Program> ranks;
    for (const PlannedPrograms& rank : world.planned) ranks.push_back(rank.programs[program]);
    us += step_us(world.layout, of.mesh, ranks, of.cost);
  }
  return us;
}

// Within more memory the choice is no slower, but for what the search misses, and no fewer units stay.
void expect_budgets_to_help(const Case& of, const World& world) {
  const std::int64_t bytes = fullest(world);
  double before = std::numeric_limits<double>::infinity();
  int resident = -1;
  for (const int percent : {70, 85, 100, 130, 200}) {
    const std::int64_t budget = bytes * percent / 100;
    SCOPED_TRACE("budget of " + std::to_string(percent) + " %");
    if (of.specs[0].strategy.placements.parameters == Placement::sharded) {
      const int stay = fit_resident_units(world.layout, of.mesh, of.specs, {.device_bytes = budget});
      EXPECT_GE(stay, resident);
      resident = stay;
    }
    Case chosen = of;
    const ChosenActivations choice =
        choose_activations(world.layout, of.mesh, of.specs, of.cost, {.device_bytes = budget});
    for (StepSpec& spec : chosen.specs) spec.strategy.unit_activations = choice.units;
    if (choice.arena_bytes > budget) {
      EXPECT_TRUE(std::isinf(before)) << "nothing fits, and something did in less";
      continue;
    }
    const World planned(chosen);
    EXPECT_LE(fullest(planned), budget);
    const double time = time_of(of, planned);
    EXPECT_LE(time, before * kSearchMisses);
    before = std::min(before, time);
  }
}

std::vector<MemoryPlan> plans_of(const World& world) {
  std::vector<MemoryPlan> plans;
  for (const PlannedPrograms& rank : world.planned) plans.push_back(rank.plan);
  return plans;
}

Case followed(const Case& of, const std::vector<std::string>& words) {
  Case changed = of;
  for (StepSpec& spec : changed.specs)
    for (const std::string& word : words) follow(word, spec);
  return changed;
}

bool fits(const World& world, const MemoryBudget& budget) {
  return std::ranges::all_of(world.planned,
                             [&](const PlannedPrograms& rank) { return budget.holds(rank.plan); });
}

// What is advised fits, of the bytes that are said, and none of it can stay away.
void expect_true_advice(const Case& of, const Advice& advice, const MemoryBudget& budget) {
  SCOPED_TRACE(::testing::PrintToString(advice.words));
  const Case changed = followed(of, advice.words);
  const World world(changed);
  EXPECT_TRUE(fits(world, budget));
  for (std::size_t space = 0; space < kSpaces; ++space) {
    std::int64_t most = 0;
    for (const PlannedPrograms& rank : world.planned)
      most = std::max(most, rank.plan.spaces[space].arena_bytes);
    EXPECT_EQ(advice.bytes[space], most) << name_of(static_cast<Space>(space));
  }
  for (std::size_t word = 0; word < advice.words.size(); ++word) {
    std::vector<std::string> others = advice.words;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(word));
    // What was chosen for each unit gives way to one word for all, which says where, too, if as before.
    const Strategy& before = of.specs[0].strategy;
    if (advice.words[word].starts_with("strategy.recompute") && !before.unit_activations.empty())
      std::erase(others, "offload.activations = " + std::string(name_of(before.offload.activations)));
    try {
      const Case without = followed(of, others);
      if (strategy_in_words(without.specs[0].strategy) == strategy_in_words(changed.specs[0].strategy))
        continue;  // said for clarity
      EXPECT_FALSE(fits(World(without), budget)) << advice.words[word] << " can stay away";
    } catch (const UsageError&) {
      // without it the others mean nothing
    }
  }
}

// Of a budget that is exceeded on the device, on the host, or on both, whatever the strategy; how many sets
// of changes were advised.
std::size_t expect_advice(const Case& of, const World& world, std::uint64_t draw) {
  const std::vector<MemoryPlan> plans = plans_of(world);
  std::array<std::int64_t, kSpaces> most = {};
  for (const MemoryPlan& plan : plans)
    for (std::size_t space = 0; space < kSpaces; ++space)
      most[space] = std::max(most[space], plan.spaces[space].arena_bytes);
  constexpr std::array<std::array<int, 2>, 4> kPercent = {
      {{90, 0}, {100, 70}, {60, 0}, {80, 200}}};  // 0: none
  const auto [device, host] = kPercent[draw % kPercent.size()];
  const MemoryBudget budget{.device_bytes = most[0] * device / 100, .host_bytes = most[1] * host / 100};
  if (fits(world, budget)) return 0;
  SCOPED_TRACE("budget " + std::to_string(device) + " % and " + std::to_string(host) + " %");
  const std::string text = explain_misfit(world.layout, of.mesh, of.specs, plans, budget, of.cost);
  const std::vector<Advice> all = advice_in(text);
  EXPECT_EQ(all.empty(), text.find("no change") != std::string::npos) << text;
  for (const Advice& advice : all) expect_true_advice(of, advice, budget);
  return all.size();
}

bool run_seed(std::uint64_t seed, std::size_t& advised) {
  const Case of = draw_case(seed);
  SCOPED_TRACE(in_words(of, seed));
  try {
    const World world(of);
    for (std::size_t index = 0; index < world.count(); ++index) {
      const VerifyReport report = world.verified(index, seed % 2 == 0);
      EXPECT_TRUE(report.ok()) << "program " << index << "\n" << report.to_string();
    }
    for (const PlannedPrograms& rank : world.planned) {
      expect_sound_plan(rank.plan);
      for (const Program& program : rank.programs) expect_state_bytes(of, world.layout, program);
    }
    expect_times_move_as_they_should(world, of.cost);
    if (seed % 4 == 0) expect_budgets_to_help(of, world);
    if (seed % 4 == 1) advised += expect_advice(of, world, seed / 4);
  } catch (const UnsupportedError& error) {
    EXPECT_NE(std::string(error.what()).find("no single sum of gradients"), std::string::npos)
        << error.what();
    return false;
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  return true;
}

TEST(RandomPlans, HoldWhatIsPromised) {
  const Seeds seeds(8);
  std::uint64_t ran = 0;
  std::size_t advised = 0;
  for (std::uint64_t seed = seeds.from; seed < seeds.end(); ++seed) ran += run_seed(seed, advised) ? 1 : 0;
  std::cout << ran << " of " << seeds.count << " draws ran; the others cannot be built; " << advised
            << " pieces of advice\n";
}

}  // namespace
}  // namespace tessera::testing
