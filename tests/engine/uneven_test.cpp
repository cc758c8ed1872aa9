// Steps whose microbatches are no multiple of the data ranks, or fewer than these: losses, norms and weights
// are those of one rank with all of them, to the bit.
#include <gtest/gtest.h>

#include "tests/engine/matrix.h"
#include "tests/engine/toy.h"
#include "tests/refusal.h"

namespace tessera::testing {
namespace {

constexpr int kSteps = 3;

RunConfig alone(int microbatches, DType dtype) {
  return {.family = Family::llama,
          .reduce = ReduceWhen::each,
          .dtype = dtype,
          .microbatches = microbatches,
          .steps = kSteps,
          .poison = true};
}

void expect_same_bits(const RunConfig& run, const RunConfig& reference) {
  SCOPED_TRACE(to_string(run));
  const RunResult& expected = known_run(reference);
  const RunResult result = run_training(run);
  EXPECT_TRUE(same_bits(result, expected));
}

// What else is varied goes by the number of the cell, so that each meets every value of the axes above.
RunConfig varied(RunConfig run, int cell) {
  run.prefetch = cell % 3;
  run.recompute = cell % 4 == 1 ? Recompute::full : cell % 4 == 3 ? Recompute::selective : Recompute::none;
  run.strict_order = cell % 5 == 2;
  run.resident_units = cell % 3;
  run.reduce = cell % 2 == 0 ? ReduceWhen::each : ReduceWhen::automatic;
  if (run.pipeline > 1) {
    constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::one_forward_one_backward,
                                               PipelineSchedule::gpipe, PipelineSchedule::interleaved,
                                               PipelineSchedule::looped};
    run.schedule.schedule = kSchedules[cell % 4];
    run.schedule.chunks = cell % 4 < 2 ? 1 : 2;
  }
  if (cell % 6 == 4) run.offload = {.states = Space::host, .activations = Space::host};
  if (cell % 6 == 5 && run.stage == 3) run.offload = {.states = Space::disk, .parameters = Space::host};
  return run;
}

class UnevenModel : public ::testing::TestWithParam<DType> {};

TEST_P(UnevenModel, HasTheBitsOfOneRank) {
  const DType dtype = GetParam();
  constexpr int kEach = 11;  // one cell in so many
  int cell = 0, ran = 0;
  for (const int shards : {2, 3, 4, 6, 8})
    for (const int microbatches : {1, 2, 5, 7, 12})
      for (int stage = 0; stage <= 3; ++stage)
        for (const int pipeline : {1, 2}) {
          if (++cell % kEach != 0 || !is_sampled(cell / kEach)) continue;
          const RunConfig reference = alone(microbatches, dtype);
          RunConfig run = dealt(reference, 1, shards);
          run.stage = stage;
          run.pipeline = pipeline;
          run = varied(run, ran++);
          if (run.last_round_ranks == 0) run.reduce = ReduceWhen::each;
          expect_same_bits(run, reference);
        }
}

INSTANTIATE_TEST_SUITE_P(Types, UnevenModel, ::testing::Values(DType::fp32, DType::bf16),
                         [](const auto& type) { return std::string(name_of(type.param)); });

// Of many magnitudes, so that the order of a sum shows in its bits; −0 now and then.
float gradient_of(const GradientAt& at, int global_microbatch) {
  const auto key = static_cast<std::uint64_t>(at.parameter * 1000 + at.step);
  const double value =
      uniform(key, static_cast<std::uint64_t>(global_microbatch), static_cast<std::uint64_t>(at.index));
  return value < 0.1 ? -0.0f : std::ldexp(static_cast<float>(value - 0.5), static_cast<int>(64 * value) % 12);
}

std::vector<float> toy_states(int shards, int microbatches, int stage) {
  std::vector<float> states;
  run_local(shards, kBlocking, [&](Communicator world) {
    EngineOptions options = toy_options(shards, stage);
    options.strategy.reduce = ReduceWhen::each;
    options.debug.poison = true;
    const Rounds rounds = Rounds::of(microbatches, {.shard = shards});
    options.programs = {{.microbatches = rounds.count, .last_round_ranks = rounds.last_ranks}};
    Engine engine(world, toy_units(DType::bf16), options);
    engine.initialize(toy_fill());
    const int own = engine.own_microbatches();
    for (int step = 0; step < 2; ++step) {
      engine.begin(StepKind::train, rounds.count);
      toy_uses(engine, {.step = step, .microbatches = own, .gradient = [&](const GradientAt& at) {
                          return gradient_of(at, at.microbatch * shards + at.rank);
                        }});
      EXPECT_TRUE(engine.step({.learning_rate = 0.01, .weight = 1.0 * own}).applied);
    }
    const std::vector<float> all = read_everything(engine);
    if (world.rank() == 0) states = all;
  });
  return states;
}

// Gradients in bf16, summed in fp32: all states of all shards.
TEST(Uneven, AddsGradientsInTheOrderOfMicrobatches) {
  for (const int microbatches : {1, 2, 5, 7, 12}) {
    const std::vector<float> alone = toy_states(1, microbatches, 0);
    for (const int shards : {2, 3, 4, 6, 8}) {
      const int stage = (microbatches + shards) % 4;
      EXPECT_TRUE(same_bits("states", toy_states(shards, microbatches, stage), alone))
          << microbatches << " microbatches on " << shards << " ranks, stage " << stage;
    }
  }
}

// A tied embedding, whose gradient comes from two units of one rank.
TEST(Uneven, SumsTiedParametersAlike) {
  for (const int shards : {2, 3}) {
    RunConfig reference = alone(5, DType::fp32);
    reference.family = Family::gpt2;
    RunConfig run = dealt(reference, 1, shards);
    run.stage = shards;
    expect_same_bits(run, reference);
  }
}

// Two of three ranks have a microbatch in the second, last round.
EngineOptions toy_of_five(int stage) {
  EngineOptions options = toy_options(3, stage);
  const Rounds rounds = Rounds::of(5, {.shard = 3});
  options.programs = {
      {.kind = StepKind::train, .microbatches = rounds.count, .last_round_ranks = rounds.last_ranks},
      {.kind = StepKind::evaluate, .microbatches = 1, .last_round_ranks = 1}};
  options.debug.poison = true;
  return options;
}

TEST(Uneven, ARankKnowsItsOwnMicrobatches) {
  run_local(3, kBlocking, [](Communicator world) {
    Engine engine(world, toy_units(DType::bf16), toy_of_five(3));
    EXPECT_EQ(engine.own_microbatches(), world.rank() < 2 ? 2 : 1);
    EXPECT_EQ(engine.own_microbatches(1), world.rank() == 0 ? 1 : 0);
    EXPECT_EQ(engine.program(0).rests, world.rank() == 2);
    engine.initialize(toy_fill());
    // An evaluation of one microbatch, which the first rank has.
    engine.begin(StepKind::evaluate, 1);
    if (world.rank() == 0)
      for (UnitId unit = kEmbed; unit <= kHead; ++unit) engine.use(unit, Pass::forward).end();
    const bool has = world.rank() == 0;
    EXPECT_EQ(engine.step({.weight = has ? 2.0 : 0.0, .loss = has ? 6.0 : 0.0}).loss, 3.0);
  });
}

// Of which the last rank, which rests in the last round, is one: a step that it abandons, or in which
// another's gradient is not finite, changes nothing on any rank, and the next one goes on.
TEST(Uneven, DropsAStepOnAllRanks) {
  for (const int stage : {0, 3})
    for (const int abandons : {-1, 0, 2}) {
      SCOPED_TRACE("stage " + std::to_string(stage) + " abandoned by " + std::to_string(abandons));
      run_local(3, kBlocking, [&](Communicator world) {
        Engine engine(world, toy_units(DType::bf16), toy_of_five(stage));
        engine.initialize(toy_fill());
        const int own = engine.own_microbatches();
        const auto step = [&](int number, bool bad) {
          engine.begin(StepKind::train, 2);
          toy_uses(engine, {.step = number, .microbatches = own, .gradient = [&](const GradientAt& at) {
                              const bool infinite = bad && at.rank == 1 && at.microbatch == 1;
                              return infinite ? INFINITY : toy_gradient(at);
                            }});
          return bad && abandons == world.rank()
                     ? engine.abandon()
                     : engine.step({.learning_rate = 0.01, .weight = 1.0 * own, .loss = 1.0 * own});
        };
        EXPECT_TRUE(step(0, false).applied);
        const std::vector<float> before = read_everything(engine);
        const StepResult dropped = step(1, true);
        EXPECT_FALSE(dropped.applied);
        EXPECT_EQ(dropped.reason, abandons >= 0 ? SkipReason::abandoned : SkipReason::not_finite);
        EXPECT_EQ(read_everything(engine), before);
        const StepResult next = step(2, false);
        EXPECT_TRUE(next.applied);
        EXPECT_EQ(next.loss, 1.0);
        EXPECT_NE(read_everything(engine), before);
      });
    }
}

TEST(Uneven, RefusesWhatHasNoOneOrder) {
  const auto refused = [](const std::function<void(EngineOptions&)>& change) {
    EngineOptions options = toy_options(2, 1);
    options.programs = {{.kind = StepKind::train, .microbatches = 2, .last_round_ranks = 1}};
    change(options);
    const Layout layout(toy_units(DType::bf16), options.mesh.shard, options.mesh.replicate);
    return refusal([&] { plan_pipeline(layout, options.mesh, step_specs(options)); });
  };
  expect_words(refused([](EngineOptions& of) { of.strategy.reduce = ReduceWhen::last; }),
               {"strategy.reduce is last", "1 of 2 data ranks have a microbatch in the last round",
                "use each or automatic", "a multiple of 2"});
  expect_words(refused([](EngineOptions& of) { of.strategy.reduction = Reduction::native; }),
               {"strategy.reduction is native", "use exact"});
  expect_words(refused([](EngineOptions& of) { of.mesh.replicate = 2; }),
               {"mesh.replicate is 2", "make mesh.replicate 1", "a multiple of 4"});
  expect_words(refused([](EngineOptions& of) { of.programs[0].last_round_ranks = 2; }),
               {"last_round_ranks is 2", "it must be 1 to 1, or 0 for all"});
  expect_words(refused([](EngineOptions& of) { of.programs[0].last_round_ranks = -1; }),
               {"last_round_ranks is -1"});
}

}  // namespace
}  // namespace tessera::testing
