// Whole steps against a scalar float64 reference of the same gradients and optimizer.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "tessera/memory_plan.h"
#include "tessera/program.h"
#include "tests/engine/toy.h"
#include "tests/engine/toy_reference.h"

namespace tessera::testing {
namespace {

constexpr int kSteps = 4;

struct Outcome {
  std::vector<float> master, parameter, moment1, moment2;
  IdVector<StepResult> steps;
};

struct ToyRun {
  int world = 1;
  DType type = DType::fp32;
  int microbatches = 2;
  bool evaluate = false;  // between the steps
  EngineOptions engine;
};

Outcome train(const ToyRun& run) {
  IdVector<Outcome> outcomes(run.world);
  run_local(run.world, kBlocking, [&](Communicator world) {
    EngineOptions options = run.engine;
    options.programs = {{.kind = StepKind::train, .microbatches = run.microbatches}};
    if (run.evaluate) options.programs.push_back({.kind = StepKind::evaluate, .microbatches = 1});
    Engine engine(world, toy_units(run.type), options);
    engine.initialize(toy_fill());
    Outcome outcome;
    for (int step = 0; step < kSteps; ++step) {
      if (run.evaluate) {
        engine.begin(StepKind::evaluate);
        toy_uses(engine, {.microbatches = 1}, StepKind::evaluate);
        const StepResult result = engine.step({.weight = 4.0, .loss = 8.0});
        EXPECT_FALSE(result.applied);
        EXPECT_EQ(result.loss, 2.0);
        EXPECT_EQ(result.step, step);
      }
      outcome.steps.push_back(toy_step(engine, {.step = step, .microbatches = run.microbatches}));
    }
    outcome.master = read_state(engine, StateKind::master);
    outcome.parameter = read_state(engine, StateKind::parameter);
    const int moments = options.optimizer.moments();
    if (moments > 0) outcome.moment1 = read_state(engine, StateKind::moment1);
    if (moments > 1) outcome.moment2 = read_state(engine, StateKind::moment2);
    outcomes[world.rank()] = std::move(outcome);
  });
  for (const Outcome& other : outcomes) {
    EXPECT_EQ(other.master, outcomes[0].master);
    EXPECT_EQ(other.parameter, outcomes[0].parameter);
  }
  return outcomes[0];
}

void expect_near(const std::vector<float>& found, const std::vector<double>& expected, const char* what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t k = 0; k < found.size(); ++k)
    ASSERT_NEAR(found[k], expected[k], 2e-6 * std::max(1.0, std::abs(expected[k]))) << what << " " << k;
}

void expect_like_reference(const ToyRun& run) {
  const Outcome outcome = train(run);
  ToyReference reference(run.type, run.engine.optimizer, run.engine.clip);
  for (int step = 0; step < kSteps; ++step) {
    const ToyReference::Step expected = reference.step(step, run.microbatches, run.world, 0.01);
    const StepResult& found = outcome.steps[step];
    EXPECT_TRUE(found.applied);
    EXPECT_EQ(found.reason, SkipReason::none);
    EXPECT_EQ(found.step, step + 1);
    EXPECT_EQ(found.learning_rate, 0.01);
    EXPECT_EQ(found.weight, expected.weight);
    EXPECT_DOUBLE_EQ(found.loss, expected.loss);
    EXPECT_NEAR(found.gradient_norm, expected.norm, 1e-12 * expected.norm);
    if (run.engine.parameter_norms) {
      ASSERT_EQ(found.parameter_norms.size(), expected.parameter_norms.size());
      for (std::size_t k = 0; k < expected.parameter_norms.size(); ++k)
        EXPECT_NEAR(found.parameter_norms[k], expected.parameter_norms[k], 1e-12 * expected.norm) << k;
    }
  }
  expect_near(outcome.master, reference.master(), "master");
  expect_near(outcome.moment1, reference.moment1(), "moment1");
  expect_near(outcome.moment2, reference.moment2(), "moment2");
  EXPECT_EQ(outcome.parameter, reference.rounded(outcome.master)) << "parameters are not the rounded masters";
}

using Cell = std::tuple<int, int, DType>;
class Verbs : public ::testing::TestWithParam<Cell> {
 protected:
  ToyRun run() const {
    const auto [world, stage, type] = GetParam();
    ToyRun made{.world = world, .type = type, .engine = toy_options(world, stage)};
    if (type == DType::fp16) made.engine.loss_scaling = LossScaleOptions{.initial = 1024};
    return made;
  }
};

// The same on one type: what these vary does not depend on it.
class Variants : public Verbs {};

TEST_P(Verbs, AdamW) { expect_like_reference(run()); }

TEST_P(Variants, SgdWithMomentumReducingOnce) {
  ToyRun sgd = run();
  sgd.engine.optimizer.options = SgdOptions{.momentum = 0.9, .weight_decay = 0.01};
  sgd.engine.strategy.reduce = ReduceWhen::last;
  expect_like_reference(sgd);
}

TEST_P(Variants, Lion) {
  ToyRun lion = run();
  lion.engine.optimizer.options = LionOptions{.weight_decay = 0.1};
  expect_like_reference(lion);
}

TEST_P(Variants, ClippedWithParameterNormsReducingEach) {
  ToyRun clipped = run();
  clipped.engine.optimizer.options = SgdOptions{};
  clipped.engine.strategy.reduce = ReduceWhen::each;
  clipped.engine.clip.max_norm = 0.25;
  clipped.engine.parameter_norms = true;
  expect_like_reference(clipped);
}

TEST_P(Variants, ZeroedGradientsGiveTheSameBits) {
  const Outcome expected = train(run());
  ToyRun zeroed = run();
  zeroed.engine.overwrites_gradients = false;
  const Outcome found = train(zeroed);
  EXPECT_EQ(found.master, expected.master);
  EXPECT_EQ(found.moment2, expected.moment2);
}

TEST_P(Variants, EvaluationsInBetweenChangeNothing) {
  const Outcome expected = train(run());
  ToyRun evaluating = run();
  evaluating.evaluate = true;
  evaluating.engine.debug.poison = true;
  const Outcome found = train(evaluating);
  EXPECT_EQ(found.master, expected.master);
  EXPECT_EQ(found.parameter, expected.parameter);
  EXPECT_EQ(found.moment2, expected.moment2);
}

std::string cell_name(const ::testing::TestParamInfo<Cell>& made) {
  const auto [world, stage, type] = made.param;
  return "world" + std::to_string(world) + "_stage" + std::to_string(stage) + "_" +
         std::string(name_of(type));
}

// An evaluation of microbatches [first, end), whose losses add up to something that rounds.
StepResult evaluated(Engine& engine, int first, int end, bool continues) {
  engine.begin(StepKind::evaluate, end - first, {.continues = continues});
  toy_uses(engine, {.microbatches = end - first}, StepKind::evaluate);
  for (int microbatch = first; microbatch < end; ++microbatch) {
    const LossTotal total = {.sum = 0.1 * (microbatch + 1) + 0.7 * engine.rank(), .counted = microbatch + 1};
    engine.add_loss(&total);
  }
  return engine.step({.weight = 0});
}

TEST(Evaluations, InPartsGiveTheBitsOfOne) {
  run_local(2, kBlocking, [](Communicator world) {
    EngineOptions options = toy_options(2, 3);
    options.programs = {{.kind = StepKind::train}};
    for (const int microbatches : {1, 2, 3, 7})
      options.programs.push_back({.kind = StepKind::evaluate, .microbatches = microbatches});
    options.debug.poison = true;
    Engine engine(world, toy_units(DType::bf16), options);
    engine.initialize(toy_fill());
    for (int round = 0; round < 2; ++round) {
      const StepResult all = evaluated(engine, 0, 7, false);
      EXPECT_EQ(all.weight, 56.0);
      EXPECT_EQ(evaluated(engine, 0, 3, false).weight, 12.0) << "begins anew";
      evaluated(engine, 3, 4, true);
      evaluated(engine, 4, 5, true);
      const StepResult parts = evaluated(engine, 5, 7, true);
      EXPECT_EQ(parts.loss, all.loss);
      EXPECT_EQ(parts.weight, all.weight);
      toy_step(engine, {.step = round});  // whose own sums begin at 0, and leave squares behind
    }
  });
}

TEST(GradientBeta, IsPerParameterWhereTiesMixThem) {
  for (bool zeroed : {false, true}) {
    run_local(2, kBlocking, [&](Communicator world) {
      EngineOptions options = toy_options(2, 3);
      options.overwrites_gradients = !zeroed;
      Engine engine(world, toy_units(DType::bf16), options);
      engine.initialize(toy_fill());
      engine.begin(StepKind::train);
      for (UnitId unit = 0; unit <= kHead; ++unit) engine.skip(unit, Pass::forward);
      const float fresh = zeroed ? 1.0f : 0.0f;
      UnitLease head = engine.use(kHead, Pass::backward);
      EXPECT_EQ(head.gradient_beta(), fresh);
      EXPECT_EQ(head.gradient_beta(kHeadWeight), fresh);
      head.end();
      for (UnitId unit = kBlock1; unit >= kBlock0; --unit) engine.skip(unit, Pass::backward);
      UnitLease embed = engine.use(kEmbed, Pass::backward);
      EXPECT_EQ(embed.gradient_beta(kEmbedWeight), 1.0f);
      EXPECT_EQ(embed.gradient_beta(kEmbedBias), fresh);
      if (zeroed) {
        EXPECT_EQ(embed.gradient_beta(), 1.0f);
      } else {
        EXPECT_THROW(embed.gradient_beta(), UsageError);
      }
      write_gradients(engine, embed, {});
      embed.end();
      (void)engine.step({.learning_rate = 0.1});
    });
  }
}

// A unit that has a parameter twice adds both gradients up.
TEST(GradientBeta, AddsWithinAUnit) {
  run_local(1, kBlocking, [](Communicator world) {
    EngineOptions options = toy_options(1, 0);
    options.optimizer.options = SgdOptions{};
    Engine engine(world,
                  {{.name = "unit",
                    .parameters = {{.name = "first", .shape = {5}},
                                   {.name = "again", .shape = {5}, .tied_to = "first"}}}},
                  options);
    engine.initialize([](ParameterId, std::int64_t, std::span<float> values) {
      std::fill(values.begin(), values.end(), 0.0f);
    });
    engine.begin(StepKind::train);
    engine.skip(0, Pass::forward);
    UnitLease lease = engine.use(0, Pass::backward);
    EXPECT_EQ(lease.gradient_beta(0), 0.0f);
    EXPECT_EQ(lease.gradient_beta(1), 1.0f);
    EXPECT_THROW(lease.gradient_beta(), UsageError);
    write_gradients(engine, lease, {.gradient = [](const GradientAt& at) { return 1.0f + at.parameter; }});
    lease.end();
    (void)engine.step({.learning_rate = 1});
    EXPECT_EQ(read_state(engine, StateKind::master), std::vector<float>(5, -3.0f));
  });
}

TEST(Views, LieAtOneAddressInAllPassesAndSteps) {
  run_local(2, kBlocking, [](Communicator world) {
    EngineOptions options = toy_options(2, 3);
    options.programs = {{.kind = StepKind::train, .microbatches = 2}, {.kind = StepKind::evaluate}};
    Engine engine(world, toy_units(DType::bf16), options);
    engine.initialize(toy_fill());
    IdVector<const void*> seen(engine.layout().parameters());
    const auto look = [&](UnitId unit, Pass pass) {
      UnitLease lease = engine.use(unit, pass);
      const ParameterId first = engine.layout().first_parameter(unit);
      const std::size_t count = engine.layout().units()[unit].parameters.size();
      for (std::size_t k = 0; k < count; ++k) {
        const TensorView view = lease.parameter(first + static_cast<ParameterId>(k));
        const void*& address = seen[static_cast<std::size_t>(first) + k];
        if (!address) address = view.data;
        EXPECT_EQ(view.data, address);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % kAlignmentBytes, 0U);
      }
      if (pass == Pass::backward) write_gradients(engine, lease, {});
      lease.end();
    };
    for (int step = 0; step < 2; ++step) {
      engine.begin(StepKind::train, 2);
      for (int microbatch = 0; microbatch < 2; ++microbatch) {
        for (UnitId unit = 0; unit <= kHead; ++unit) look(unit, Pass::forward);
        for (UnitId unit = kHead; unit >= 0; --unit) look(unit, Pass::backward);
      }
      (void)engine.step({.learning_rate = 0.1});
      engine.begin(StepKind::evaluate);
      for (UnitId unit = 0; unit <= kHead; ++unit) look(unit, Pass::forward);
      (void)engine.step({});
    }
    EXPECT_EQ(seen[kHeadWeight], seen[kEmbedWeight]);
  });
}

// The states behind two steps, and how often a step gathers parameters.
std::pair<std::vector<float>, int> train_units(const std::vector<UnitSpec>& units) {
  std::pair<std::vector<float>, int> outcome;
  run_local(2, kBlocking, [&](Communicator world) {
    EngineOptions options = toy_options(2, 3);
    options.debug.poison = true;
    options.strategy.prefetch = 0;
    Engine engine(world, units, options);
    engine.initialize(toy_fill());
    for (int step = 0; step < 2; ++step) toy_step(engine, {.step = step});
    const std::vector<float> states = read_everything(engine);
    if (world.rank() != 0) return;
    outcome.first = states;
    for (const Instruction& instruction : engine.program(0).instructions)
      outcome.second += instruction.op == Opcode::all_gather;
  });
  return outcome;
}

// No multiple of 8, and the arena ends with one of them.
TEST(Poison, CoversBuffersOfAnyBytes) {
  EngineOptions options = toy_options(1, 0);
  options.debug.poison = true;
  options.programs[0].activations.units.assign(toy_units(DType::fp32).size(),
                                               UnitActivations{.output_bytes = 36, .saved_bytes = 36});
  run_local(1, kBlocking, [&](Communicator world) {
    Engine engine(world, toy_units(DType::fp32), options);
    ASSERT_EQ(engine.plan().space(Space::device).arena_bytes % 8, 4);
    engine.initialize(toy_fill());
    EXPECT_TRUE(toy_step(engine, {.microbatches = 1}).applied);
  });
}

TEST(ForwardOnly, ParametersAreNotGatheredForBackward) {
  std::vector<UnitSpec> units = toy_units(DType::bf16);
  const auto [states, gathers] = train_units(units);
  units[kBlock0].read_in_forward_only = true;
  const auto [same_states, fewer] = train_units(units);
  EXPECT_EQ(states, same_states);
  EXPECT_EQ(fewer, gathers - 2);  // its trainable and its frozen flat
}

TEST(ForwardOnly, ParametersAreRefusedInBackward) {
  std::vector<UnitSpec> units = toy_units(DType::fp32);
  units[kHead].read_in_forward_only = true;
  Engine engine(make_local_world(1)[0], units, toy_options(1, 0));
  engine.initialize(toy_fill());
  engine.begin(StepKind::train, 1);
  for (UnitId unit = 0; unit <= kHead; ++unit) engine.use(unit, Pass::forward).end();
  UnitLease lease = engine.use(kHead, Pass::backward);
  try {
    lease.parameter(kHeadWeight);
    FAIL() << "parameters were given";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "parameter 'head.weight' in backward of head: the unit is declared read_in_forward_only");
  }
  EXPECT_NO_THROW(lease.gradient(kHeadWeight));
  write_gradients(engine, lease, {});
  lease.end();
}

INSTANTIATE_TEST_SUITE_P(Worlds, Verbs,
                         ::testing::Combine(::testing::Values(1, 2, 4), ::testing::Values(0, 1, 2, 3),
                                            ::testing::Values(DType::fp32, DType::bf16, DType::fp16)),
                         cell_name);
INSTANTIATE_TEST_SUITE_P(Worlds, Variants,
                         ::testing::Combine(::testing::Values(2, 4), ::testing::Values(0, 1, 2, 3),
                                            ::testing::Values(DType::bf16)),
                         cell_name);

}  // namespace
}  // namespace tessera::testing
