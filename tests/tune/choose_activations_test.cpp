// Activations chosen for a budget: never above it where anything fits, and hardly slower than the
// best of all choices.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <random>

#include "src/simulate/step_time.h"
#include "tessera/budget.h"
#include "tessera/pipeline.h"
#include "tests/program/sampled.h"
#include "tests/program/sanitized.h"
#include "tests/program/small_models.h"

namespace tessera::testing {
namespace {

const ActivationChoice kNone = {.recompute = Recompute::none},
                       kSelective = {.recompute = Recompute::selective},
                       kFull = {.recompute = Recompute::full};

// Of so many random cases, how many this run takes; at least 3, so that the budgets are of every kind.
unsigned drawn(unsigned all) {
  return std::max(3u, all / static_cast<unsigned>(sampled_each(kSanitized ? 10 : 3)));
}

// A random chain on a random mesh, with what its passes take.
struct RandomChain {
  RandomChain(unsigned seed, int most_units, int most_pipeline) : generator(seed) {
    const int units = pick(3, most_units);
    const bool alike = pick(0, 2) == 0;  // transformer blocks are
    ActivationSpec activations{.units = {}, .batch_bytes = 512};
    std::vector<UnitSpec> specs;
    for (int unit = 0; unit < units; ++unit) {
      if (alike && unit > 0) {
        activations.units.push_back(activations.units[0]);
        cost.forward_flops.push_back(cost.forward_flops[0]);
        cost.recompute_flops.push_back(cost.recompute_flops[0]);
      } else {
        activations.units.push_back(UnitActivations{.output_bytes = 256 * pick(1, 400),
                                                    .saved_bytes = 256 * pick(0, 4000),
                                                    .recomputable_bytes = 256 * pick(0, 2000),
                                                    .workspace_bytes = 256 * pick(0, 1000)});
        cost.forward_flops.push_back(1e6 * pick(1, 1000));
        cost.recompute_flops.push_back(cost.forward_flops.back() * 0.1 * pick(3, 10));
      }
      specs.push_back(chain(unit + 1, 100 * pick(1, 300)).back());
    }
    cost.memory_bytes_per_us = 100.0 * pick(1, 30);
    mesh = {.pipeline = pick(1, most_pipeline), .shard = pick(1, 2)};
    layout = Layout(specs, mesh.shard);
    const int stage = 3 * pick(0, 1);
    StepSpec train{.microbatches = pick(1, 3),
                   .strategy = {.placements = Placements::of_stage(stage), .prefetch = pick(0, 2)},
                   .activations = activations,
                   .order = {}};
    StepSpec evaluate = train;
    evaluate.kind = StepKind::evaluate;
    specs_of = {train, evaluate};
  }

  int pick(int from, int to) {
    return from + static_cast<int>(generator() % static_cast<unsigned>(to - from + 1));
  }
  int units() const { return layout.units().count(); }

  std::vector<StepSpec> with(const IdVector<ActivationChoice>& units) const {
    std::vector<StepSpec> specs = specs_of;
    for (StepSpec& spec : specs) spec.strategy.unit_activations = units;
    return specs;
  }
  std::int64_t arena_bytes(const IdVector<ActivationChoice>& units) const {
    std::int64_t most = 0;
    for (int rank = 0; rank < mesh.pipeline; ++rank)
      most = std::max(most,
                      build_and_plan(layout, mesh, with(units), rank).plan.space(Space::device).arena_bytes);
    return most;
  }
  std::int64_t arena_of_all(const ActivationChoice& choice) const {
    return arena_bytes(std::vector<ActivationChoice>(layout.units().size(), choice));
  }
  // Of all ranks.
  double step_us(const IdVector<ActivationChoice>& units) const {
    std::vector<Program> programs;
    for (PlannedPrograms& planned : plan_pipeline(layout, mesh, with(units)))
      programs.push_back(std::move(planned.programs[0]));
    return tessera::step_us(layout, mesh, programs, cost);
  }
  ChosenActivations choose(std::int64_t budget) const {
    return choose_activations(layout, mesh, specs_of, cost, {.device_bytes = budget});
  }

  std::mt19937 generator;
  CostModel cost;
  Mesh mesh;
  Layout layout{chain(1, 1), 1};
  std::vector<StepSpec> specs_of;
};

// Calls visit() with every mixture of the choices; the last unit's changes nothing.
template <class Visit>
void each_mixture(int units, std::span<const ActivationChoice> choices, Visit visit) {
  std::vector<ActivationChoice> mixture(static_cast<std::size_t>(units), choices[0]);
  std::vector<std::size_t> at(mixture.size());
  for (;;) {
    visit(mixture);
    std::size_t unit = 0;
    for (; unit + 1 < at.size(); ++unit) {
      at[unit] = (at[unit] + 1) % choices.size();
      mixture[unit] = choices[at[unit]];
      if (at[unit] != 0) break;
    }
    if (unit + 1 == at.size()) return;
  }
}

TEST(ChooseActivations, IsWithinThreePercentOfTheBestMixture) {
  double worst = 1;
  int cases = 0, tight = 0;
  for (unsigned seed = 0; seed < drawn(8); ++seed) {
    RandomChain random(seed, 6, 1);
    struct Measured {
      std::int64_t bytes;
      double us;
    };
    std::vector<Measured> all;
    const ActivationChoice choices[] = {kNone, kSelective, kFull};
    each_mixture(random.units(), choices, [&](const std::vector<ActivationChoice>& mixture) {
      all.push_back({random.arena_bytes(mixture), random.step_us(mixture)});
    });
    const std::vector<ActivationChoice> full(random.layout.units().size(), kFull);
    const auto [least, most] = std::ranges::minmax(all, {}, &Measured::bytes);
    for (const double share : {0.0, 0.1, 0.3, 0.5, 0.7, 0.9}) {
      const auto budget =
          least.bytes + static_cast<std::int64_t>(share * static_cast<double>(most.bytes - least.bytes));
      if (budget < random.arena_of_all(kFull)) continue;  // packing: one mixture in many lies below
      const ChosenActivations chosen = random.choose(budget);
      ASSERT_LE(random.arena_bytes(chosen.units), budget) << "seed " << seed;
      EXPECT_EQ(random.arena_bytes(chosen.units), chosen.arena_bytes);
      double best = random.step_us(chosen.units);
      const double us = best;
      for (const Measured& mixture : all)
        if (mixture.bytes <= budget) best = std::min(best, mixture.us);
      worst = std::max(worst, us / best);
      ++cases;
      tight += random.step_us(full) > 1.03 * best;
      EXPECT_LE(us, 1.03 * best) << "seed " << seed << ", share " << share;
    }
  }
  std::printf("at most %.4f of the best mixture's time; in %d cases full recompute takes more than 1.03\n",
              worst, tight);
  EXPECT_GT(tight, cases / 3) << "the budgets are too easy to tell anything";
}

TEST(ChooseActivations, IsWithinThreePercentWithEightUnits) {
  for (unsigned seed = 100; seed < 100 + drawn(6); ++seed) {
    RandomChain random(seed, 8, 1);
    const std::int64_t budget = (random.arena_of_all(kNone) + random.arena_of_all(kFull)) / 2;
    const double us = random.step_us(random.choose(budget).units);
    const ActivationChoice choices[] = {kNone, kFull};
    each_mixture(random.units(), choices, [&](const std::vector<ActivationChoice>& mixture) {
      if (random.arena_bytes(mixture) <= budget) {
        EXPECT_LE(us, 1.03 * random.step_us(mixture)) << "seed " << seed;
      }
    });
  }
}

// Over links of any speed: waiting on the host takes less time than making again, or more.
TEST(ChooseActivations, KeepsOnTheHostWhereThatIsFaster) {
  const ActivationChoice host = {.recompute = Recompute::none, .kept = Space::host};
  const ActivationChoice choices[] = {kNone, kFull, host};
  int waiting = 0, made_again = 0;
  for (unsigned seed = 200; seed < 200 + drawn(8); ++seed)
    for (const double link_bytes_per_us : {10.0, 300.0, 1e5}) {
      RandomChain random(seed, 5, 1);
      random.cost.host_link_bytes_per_us = link_bytes_per_us;
      const std::int64_t budget = (random.arena_of_all(kNone) + random.arena_of_all(kFull)) / 2;
      const std::vector<ActivationChoice> chosen =
          choose_activations(random.layout, random.mesh, random.specs_of, random.cost,
                             {.device_bytes = budget}, choices)
              .units;
      ASSERT_LE(random.arena_bytes(chosen), budget);
      waiting += static_cast<int>(std::ranges::count(chosen, host));
      made_again += static_cast<int>(std::ranges::count(chosen, kFull));
      const double us = random.step_us(chosen);
      each_mixture(random.units(), choices, [&](const std::vector<ActivationChoice>& mixture) {
        if (random.arena_bytes(mixture) <= budget) {
          EXPECT_LE(us, 1.03 * random.step_us(mixture)) << "seed " << seed << ", link " << link_bytes_per_us;
        }
      });
    }
  EXPECT_GT(waiting, 0);
  EXPECT_GT(made_again, 0);
}

struct HeldMixture {
  MemoryPlan plan;
  double us = 0;
};

// Beside every mixture, with two budgets: what the host has no room for is made again, or stays.
TEST(ChooseActivations, KeepsWithinTheHostsBudgetToo) {
  const ActivationChoice choices[] = {kNone, kFull, {.recompute = Recompute::none, .kept = Space::host}};
  double worst = 1;
  int cases = 0, tight = 0, missed = 0;
  for (unsigned seed = 500; seed < 500 + drawn(12); ++seed) {
    RandomChain random(seed, 6, 1);
    random.cost.host_link_bytes_per_us = 1000.0 * random.pick(1, 20);
    std::vector<HeldMixture> all;
    each_mixture(random.units(), choices, [&](const std::vector<ActivationChoice>& mixture) {
      all.push_back(
          {build_and_plan(random.layout, random.mesh, random.with(mixture)).plan, random.step_us(mixture)});
    });
    const auto share_of = [&](Space space, double share) {
      const auto bytes = [&](const HeldMixture& mixture) { return mixture.plan.space(space).arena_bytes; };
      const auto [least, most] = std::ranges::minmax(all, {}, bytes);
      return bytes(least) +
             static_cast<std::int64_t>(share * static_cast<double>(bytes(most) - bytes(least)));
    };
    for (const double of_device : {0.0, 0.2, 0.5, 0.8})
      for (const double of_host : {0.1, 0.3, 0.6, 0.9}) {
        const MemoryBudget budget{.device_bytes = share_of(Space::device, of_device),
                                  .host_bytes = std::max<std::int64_t>(1, share_of(Space::host, of_host))};
        const ChosenActivations chosen =
            choose_activations(random.layout, random.mesh, random.specs_of, random.cost, budget, choices);
        const MemoryPlan plan = build_and_plan(random.layout, random.mesh, random.with(chosen.units)).plan;
        EXPECT_EQ(chosen.fits, budget.holds(plan)) << "seed " << seed;
        EXPECT_EQ(chosen.arena_bytes, plan.space(Space::device).arena_bytes);
        EXPECT_EQ(chosen.host_bytes, plan.space(Space::host).arena_bytes);
        double best = std::numeric_limits<double>::infinity(), unbounded = best;
        for (const HeldMixture& mixture : all) {
          if (budget.holds(mixture.plan)) best = std::min(best, mixture.us);
          if (MemoryBudget{.device_bytes = budget.device_bytes}.holds(mixture.plan))
            unbounded = std::min(unbounded, mixture.us);
        }
        if (!chosen.fits) {
          missed += std::isfinite(best);
          continue;
        }
        const double us = random.step_us(chosen.units);
        worst = std::max(worst, us / best);
        ++cases;
        tight += unbounded < best;
        EXPECT_LE(us, 1.03 * best) << "seed " << seed << ", shares " << of_device << " and " << of_host;
      }
  }
  std::printf("at most %.4f of the best mixture's time in %d cases; %d that fit were missed\n", worst, cases,
              missed);
  EXPECT_GT(tight, cases / 4) << "the host's budget matters too little to tell anything";
  EXPECT_LE(missed, cases / 50) << "of what only one mixture in many fits, some may be";
}

// Nothing goes to the host where all of it on the device is as near to a budget that nothing fits.
TEST(ChooseActivations, MovesNothingInVainWhereNothingFits) {
  const ActivationChoice choices[] = {
      kNone, kSelective, kFull, {.recompute = Recompute::none, .kept = Space::host}};
  int vain = 0;
  for (unsigned seed = 200; seed < 260; ++seed) {
    RandomChain random(seed, 8, 1);
    if (seed % 2 == 0) {  // gradients, of which most are there when backward ends, take more than activations
      random.mesh = {};
      random.layout = Layout(chain(random.units(), 10'000'000), 1);
      for (StepSpec& spec : random.specs_of) spec.microbatches = 1;
    }
    const ChosenActivations least = choose_activations(random.layout, random.mesh, random.specs_of,
                                                       random.cost, {.device_bytes = 1}, choices);
    EXPECT_FALSE(least.fits);
    EXPECT_LE(least.arena_bytes, random.arena_of_all(kFull));
    if (random.arena_of_all(kNone) > least.arena_bytes) continue;
    ++vain;
    EXPECT_EQ(least.host_bytes, 0) << "seed " << seed;
  }
  EXPECT_GT(vain, 0);
  // The other way round: where the host holds nothing, all is as it is without it.
  RandomChain random(3, 6, 1);
  const std::int64_t budget = (random.arena_of_all(kNone) + random.arena_of_all(kFull)) / 2;
  const ChosenActivations none = choose_activations(random.layout, random.mesh, random.specs_of, random.cost,
                                                    {.device_bytes = budget, .host_bytes = 1}, choices);
  EXPECT_TRUE(none.fits);
  EXPECT_EQ(none.host_bytes, 0);
}

// Copies that take no time, behind compute, are made all the same only where memory lacks.
TEST(ChooseActivations, MovesNothingWhereAllFits) {
  const ActivationChoice choices[] = {
      kNone, kSelective, kFull, {.recompute = Recompute::none, .kept = Space::host}};
  for (unsigned seed = 200; seed < 210; ++seed) {
    RandomChain random(seed, 12, 3);
    if (random.units() < random.mesh.pipeline) continue;
    random.cost.host_link_bytes_per_us = 1e7;
    const std::vector<ActivationChoice> chosen =
        choose_activations(random.layout, random.mesh, random.specs_of, random.cost,
                           {.device_bytes = random.arena_of_all(kNone)}, choices)
            .units;
    EXPECT_EQ(std::ranges::count(chosen, kNone), random.units()) << "seed " << seed;
  }
}

// Every mixture over a pipeline. What a rank runs follows from the choices of its own units alone.
class MixturesOverPipeline {
 public:
  explicit MixturesOverPipeline(const RandomChain& of) : of_(of), known_(of.mesh.pipeline) {}

  std::int64_t arena_bytes(const IdVector<ActivationChoice>& units) {
    std::int64_t most = 0;
    for (int rank = 0; rank < of_.mesh.pipeline; ++rank)
      most = std::max(most, planned(units, rank).plan.space(Space::device).arena_bytes);
    return most;
  }
  double step_us(const IdVector<ActivationChoice>& units) {
    std::vector<Program> programs;
    programs.reserve(known_.size());
    for (int rank = 0; rank < of_.mesh.pipeline; ++rank) programs.push_back(planned(units, rank).programs[0]);
    return tessera::step_us(of_.layout, of_.mesh, programs, of_.cost);
  }

 private:
  const PlannedPrograms& planned(IdVector<ActivationChoice> units, int rank) {
    const Partition partition(of_.units(), of_.mesh.pipeline, of_.specs_of[0].strategy.pipeline);
    std::vector<std::pair<Recompute, Space>> own;
    for (int unit = 0; unit < of_.units(); ++unit) {
      ActivationChoice& choice = units[unit];
      if (partition.rank_of(unit) != rank) choice = kNone;
      own.emplace_back(choice.recompute, choice.kept);
    }
    auto& known = known_[rank];
    if (!known.contains(own)) known.emplace(own, build_and_plan(of_.layout, of_.mesh, of_.with(units), rank));
    return known.at(own);
  }

  const RandomChain& of_;
  IdVector<std::map<std::vector<std::pair<Recompute, Space>>, PlannedPrograms>> known_;  // by rank
};

// What is made again on one pipeline rank may keep others waiting, or be hidden where it waits itself.
TEST(ChooseActivations, IsWithinThreePercentOfTheBestMixtureOverAPipeline) {
  const PipelineSchedule schedules[] = {PipelineSchedule::one_forward_one_backward, PipelineSchedule::gpipe,
                                        PipelineSchedule::looped};
  const ActivationChoice host = {.recompute = Recompute::none, .kept = Space::host};
  const std::vector<ActivationChoice> on_device = {kNone, kSelective, kFull},
                                      with_host = {kNone, kFull, host};
  double worst = 1;
  int cases = 0, tight = 0;
  for (unsigned seed = 400; seed < 400 + drawn(16); ++seed) {
    RandomChain random(seed, seed % 4 == 0 ? 8 : 6, 1);
    if (random.units() < 4) continue;
    random.mesh.pipeline = 2;
    random.cost.cluster.inside.bytes_per_us = 1000.0 * random.pick(1, 10);
    random.cost.host_link_bytes_per_us = 300;
    for (StepSpec& spec : random.specs_of) {
      spec.microbatches = 1 + static_cast<int>(seed % 5);
      spec.strategy.pipeline.schedule = schedules[seed % std::size(schedules)];
      if (spec.strategy.pipeline.schedule == PipelineSchedule::looped) spec.strategy.pipeline.chunks = 2;
    }
    const std::vector<ActivationChoice>& among = seed % 2 == 0 ? with_host : on_device;
    MixturesOverPipeline mixtures(random);
    struct Measured {
      std::int64_t bytes;
      double us;
    };
    std::vector<Measured> all;
    each_mixture(random.units(), among, [&](const std::vector<ActivationChoice>& mixture) {
      all.push_back({mixtures.arena_bytes(mixture), mixtures.step_us(mixture)});
    });
    const std::vector<ActivationChoice> full(random.layout.units().size(), kFull);
    const std::int64_t least = random.arena_of_all(kFull), most = random.arena_of_all(kNone);
    for (const double share : {0.0, 0.2, 0.4, 0.6, 0.8}) {
      const auto budget = least + static_cast<std::int64_t>(share * static_cast<double>(most - least));
      const ChosenActivations chosen = choose_activations(random.layout, random.mesh, random.specs_of,
                                                          random.cost, {.device_bytes = budget}, among);
      ASSERT_LE(mixtures.arena_bytes(chosen.units), budget) << "seed " << seed;
      EXPECT_EQ(mixtures.arena_bytes(chosen.units), chosen.arena_bytes);
      const double us = mixtures.step_us(chosen.units);
      double best = us;
      for (const Measured& mixture : all)
        if (mixture.bytes <= budget) best = std::min(best, mixture.us);
      worst = std::max(worst, us / best);
      ++cases;
      tight += mixtures.step_us(full) > 1.03 * best;
      EXPECT_LE(us, 1.03 * best) << "seed " << seed << ", share " << share;
    }
  }
  std::printf("at most %.4f of the best mixture's time in %d cases over a pipeline\n", worst, cases);
  EXPECT_GT(tight, cases / 3) << "the budgets are too easy to tell anything";
}

// What fits less memory fits more, too. From the most memory down, each budget a byte less than what the
// choice before takes.
TEST(ChooseActivations, IsHardlyFasterWithinLessMemory) {
  double worst = 1;
  int budgets = 0;
  for (unsigned seed = 300; seed < 300 + drawn(12); ++seed) {
    RandomChain random(seed, 8, 1);
    const std::int64_t least = random.arena_of_all(kFull);
    double slowest = 0;
    for (std::int64_t budget = random.arena_of_all(kNone); budget >= least; ++budgets) {
      const ChosenActivations chosen = random.choose(budget);
      const double us = random.step_us(chosen.units);
      slowest = std::max(slowest, us);
      worst = std::max(worst, slowest / us);
      EXPECT_LE(slowest, 1.02 * us) << "seed " << seed << ", " << budget << " bytes";
      budget = chosen.arena_bytes - 1;
    }
  }
  std::printf("at most %.4f of the time within less memory, of %d budgets\n", worst, budgets);
}

TEST(ChooseActivations, NeverExceedsTheBudget) {
  int too_small = 0, chosen = 0;
  for (unsigned seed = 1000; seed < 1000 + drawn(200); ++seed) {
    RandomChain random(seed, 8, 3);
    if (random.units() < random.mesh.pipeline) continue;
    const std::int64_t least = random.arena_of_all(kFull), most = random.arena_of_all(kNone);
    const auto budget = static_cast<std::int64_t>(
        static_cast<double>(least) * 0.8 +
        (static_cast<double>(most) - static_cast<double>(least) * 0.8) * 0.01 * random.pick(0, 110));
    const ChosenActivations made = random.choose(budget);
    EXPECT_EQ(random.arena_bytes(made.units), made.arena_bytes) << "seed " << seed;
    const bool fits = made.arena_bytes <= budget;
    EXPECT_TRUE(fits || budget < least) << "seed " << seed << ": " << made.arena_bytes;
    ++(fits ? chosen : too_small);
  }
  EXPECT_GT(too_small, chosen / 20);
  EXPECT_GT(chosen, too_small);
}

TEST(ChooseActivations, KeepsAllWhereAllFitsAndTakesTheLeastWhereNothingDoes) {
  RandomChain random(7, 6, 1);
  const std::int64_t most = random.arena_of_all(kNone);
  EXPECT_EQ(random.step_us(random.choose(most).units),
            random.step_us(std::vector<ActivationChoice>(random.layout.units().size(), kNone)));
  const std::int64_t least = random.choose(1000).arena_bytes;
  EXPECT_LE(least, random.arena_of_all(kFull));
  EXPECT_EQ(random.choose(least).arena_bytes, least);
  EXPECT_EQ(random.choose(least - 1).arena_bytes, least);
}

// The blocks of a model that differ in place alone: a plan of many is found soon.
TEST(ChooseActivations, TakesManyEqualBlocksAndMicrobatches) {
  constexpr int kUnits = 48;
  const Layout layout(chain(kUnits, 1000), 2);
  const Mesh mesh{.pipeline = 4, .shard = 2};
  StepSpec spec{.microbatches = 8,
                .strategy = {.placements = Placements::of_stage(3)},
                .activations = activations(kUnits),
                .order = {}};
  CostModel cost{.forward_flops = std::vector<double>(kUnits, 1e8)};
  const auto arena = [&](Recompute recompute) {
    StepSpec all = spec;
    all.strategy.recompute = recompute;
    return build_and_plan(layout, mesh, {&all, 1}, 0).plan.space(Space::device).arena_bytes;
  };
  const std::int64_t budget = (arena(Recompute::none) + arena(Recompute::full)) / 2;
  const ChosenActivations chosen = choose_activations(layout, mesh, {spec}, cost, {.device_bytes = budget});
  EXPECT_LE(chosen.arena_bytes, budget);
  // The first rank has the most microbatches in flight, the last but one at a time.
  const auto kept = [&](int rank) {
    return std::count(chosen.units.begin() + rank * 12, chosen.units.begin() + rank * 12 + 12, kNone);
  };
  EXPECT_LT(kept(0), 12);
  EXPECT_GE(kept(3), kept(0));
}

// A block of four products, whose outputs take memory for very different times.
UnitGraph block_of_products() {
  using enum Keep;
  using enum Pass;
  constexpr ValueId kIn = SharedValue::input, kOut = SharedValue::output,
                    kOutGradient = SharedValue::output_gradient;
  UnitGraph graph;
  graph.output_bytes = 1 << 16;
  graph.values = {{"norm", 1 << 16, recomputable},
                  {"cheap", 4 << 16, saved},
                  {"dear", 1 << 16, saved},
                  {"up", 4 << 16, saved},
                  {"bent", 4 << 16, recomputable}};
  graph.parts = {
      {"norm", forward, {kIn}, {0}},
      {"cheap", forward, {0}, {1}, {}, 0, 1e6},
      {"dear", forward, {1}, {2}, {}, 0, 40e6},
      {"up", forward, {2}, {3}, {}, 0, 8e6},
      {"bend", forward, {3}, {4}},
      {"down", forward, {4}, {kOut}, {}, 0, 8e6},
      {"all", backward, {kIn, 0, 1, 2, 3, 4, kOutGradient}, {SharedValue::input_gradient}, {}, 0, 110e6},
  };
  return graph;
}

// Values that are made again one by one beat the three that go by kind, at most budgets between these.
TEST(ChooseActivations, GoesByValueWhereThatIsFaster) {
  constexpr int kUnits = 4;
  RandomChain of(1, 3, 1);
  of.layout = Layout(chain(kUnits, 100), 1);
  of.mesh = {};
  of.cost = {.flops_per_us = 1e5, .memory_bytes_per_us = 2e4};
  StepSpec spec{.strategy = {}, .activations = {}, .order = {}};
  for (int unit = 0; unit < kUnits; ++unit) {
    spec.activations.units.push_back(block_of_products());
    of.cost.part_flops.emplace_back();
    for (const PartSpec& part : block_of_products().parts) of.cost.part_flops.back().push_back(part.flops);
  }
  of.specs_of = {spec};
  const std::int64_t least = of.arena_of_all(kFull), most = of.arena_of_all(kNone);
  std::vector<std::pair<std::int64_t, double>> of_three;  // bytes and time of every mixture
  each_mixture(kUnits, recompute_choices(), [&](const IdVector<ActivationChoice>& units) {
    of_three.emplace_back(of.arena_bytes(units), of.step_us(units));
  });
  int faster = 0, by_value = 0;
  for (int part = 1; part <= 16; ++part) {
    const std::int64_t budget = least + (most - least) * part / 16;
    double best = std::numeric_limits<double>::infinity();
    for (const auto& [bytes, us] : of_three)
      if (bytes <= budget) best = std::min(best, us);
    const ChosenActivations chosen = of.choose(budget);
    ASSERT_TRUE(chosen.fits);
    EXPECT_LE(of.arena_bytes(chosen.units), budget);
    const double us = of.step_us(chosen.units);
    EXPECT_LE(us, 1.001 * best) << budget;
    faster += us < 0.999 * best;
    by_value +=
        std::ranges::any_of(chosen.units, [](const ActivationChoice& unit) { return !unit.again.empty(); });
  }
  std::printf("faster at %d of 16 budgets, by value at %d\n", faster, by_value);
  EXPECT_GE(faster, 6);
}

// One strategy is for all programs: values that another program's unit has not cannot be chosen.
TEST(ChooseActivations, GoesByKindWhereProgramsHaveOtherValues) {
  const Layout layout(chain(3, 100), 1);
  StepSpec spec{.strategy = {}, .activations = {}, .order = {}};
  spec.activations.units.assign(3, block_of_products());
  StepSpec other = spec;
  other.activations.units[1] = UnitActivations{.output_bytes = 1 << 16, .saved_bytes = 1 << 18};
  const auto by_value = [&](const std::vector<StepSpec>& specs) {
    const auto bytes = [&](Recompute recompute) {
      std::vector<StepSpec> all = specs;
      for (StepSpec& each : all) each.strategy.recompute = recompute;
      return build_and_plan(layout, {}, all).plan.space(Space::device).arena_bytes;
    };
    const std::int64_t budget = (bytes(Recompute::none) + bytes(Recompute::full)) / 2;
    CostModel cost{.flops_per_us = 1e5, .memory_bytes_per_us = 2e4};
    IdVector<double> flops;
    for (const PartSpec& part : block_of_products().parts) flops.push_back(part.flops);
    cost.part_flops.assign(3, flops);
    const ChosenActivations chosen = choose_activations(layout, {}, specs, cost, {.device_bytes = budget});
    EXPECT_TRUE(chosen.fits);
    std::vector<bool> units;
    for (const ActivationChoice& unit : chosen.units) units.push_back(!unit.again.empty());
    return units;
  };
  const std::vector<bool> alone = by_value({spec}), both = by_value({spec, other});
  EXPECT_TRUE(alone[0] || alone[1]);
  EXPECT_FALSE(both[1]);
}

}  // namespace
}  // namespace tessera::testing
