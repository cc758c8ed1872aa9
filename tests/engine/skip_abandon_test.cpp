// Uses that contribute nothing, steps that are dropped, steps that count nothing.
#include <gtest/gtest.h>

#include <limits>

#include "tessera/layout.h"
#include "tests/engine/toy.h"

namespace tessera::testing {
namespace {

struct Case {
  int world = 2;
  int stage = 0;
  ReduceWhen reduce = ReduceWhen::automatic;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (int world : {1, 2, 3})
    for (int stage = 0; stage <= 3; ++stage)
      for (ReduceWhen reduce : {ReduceWhen::each, ReduceWhen::last}) all.push_back({world, stage, reduce});
  return all;
}

class Contributions : public ::testing::TestWithParam<Case> {
 protected:
  EngineOptions options() const {
    EngineOptions made = toy_options(GetParam().world, GetParam().stage);
    made.strategy.reduce = GetParam().reduce;
    made.programs = {{.kind = StepKind::train, .microbatches = 2},
                     {.kind = StepKind::train, .microbatches = 1}};
    made.debug.poison = true;
    return made;
  }

  // Runs `body` on every rank and returns all states of rank 0 behind it.
  std::vector<float> run(const std::function<void(Engine&)>& body) const {
    std::vector<float> result;
    run_local(GetParam().world, kBlocking, [&](Communicator world) {
      Engine engine(world, toy_units(DType::bf16), options());
      engine.initialize(toy_fill());
      body(engine);
      const std::vector<float> all = read_everything(engine);
      if (world.rank() == 0) result = all;
    });
    return result;
  }
};

// Uses that the last rank skips, by what shares a gradient with them.
bool skipped(UnitId unit, Pass pass, int microbatch) {
  if (pass == Pass::forward) return unit == kBlock1;
  return microbatch == 0 ? unit == kHead || unit == kBlock0 : unit == kEmbed || unit == kBlock1;
}

TEST_P(Contributions, ASkippedUseEqualsOneWithZeroGradients) {
  const auto with = [&](bool skip) {
    return run([&](Engine& engine) {
      const bool last = engine.rank() == engine.world() - 1;
      for (int step = 0; step < 3; ++step) {
        ToyStep how{.step = step, .microbatches = 2};
        if (last && skip) how.skip = skipped;
        if (last && !skip)
          how.gradient = [&](const GradientAt& at) {
            return skipped(engine.layout().unit_of(at.parameter), Pass::backward, at.microbatch)
                       ? 0.0f
                       : toy_gradient(at);
          };
        EXPECT_TRUE(toy_step(engine, how).applied);
      }
    });
  };
  EXPECT_EQ(with(true), with(false));
}

// One rank keeps no accumulator for a single microbatch (docs/memory.md).
TEST_P(Contributions, ASingleMicrobatchEqualsOneThatASkippedOneFollows) {
  const auto with = [&](int microbatches) {
    return run([&](Engine& engine) {
      for (int step = 0; step < 3; ++step) {
        const auto behind_first = [](UnitId, Pass, int microbatch) { return microbatch > 0; };
        const StepResult result =
            toy_step(engine, {.step = step, .microbatches = microbatches, .skip = behind_first});
        EXPECT_TRUE(result.applied);
        EXPECT_GT(result.gradient_norm, 0.0);
      }
    });
  };
  EXPECT_EQ(with(1), with(2));
}

TEST_P(Contributions, AStepThatAllSkipMovesOnlyWhatZeroGradientsMove) {
  const std::vector<float> skipping = run([](Engine& engine) {
    const StepResult result =
        toy_step(engine, {.microbatches = 2, .skip = [](UnitId, Pass, int) { return true; }});
    EXPECT_TRUE(result.applied);
    EXPECT_EQ(result.gradient_norm, 0.0);
  });
  const std::vector<float> zero = run([](Engine& engine) {
    toy_step(engine, {.microbatches = 2, .gradient = [](const GradientAt&) { return 0.0f; }});
  });
  EXPECT_EQ(skipping, zero);
}

// Runs `uses` uses of a step whose gradients are not finite, then abandons it.
StepResult abandon_behind(Engine& engine, int uses) {
  const ToyStep how{.microbatches = 2,
                    .gradient = [](const GradientAt&) { return std::numeric_limits<float>::quiet_NaN(); }};
  engine.begin(StepKind::train, 2);
  for (int k = 0; k < uses; ++k) {
    const int place = k % (2 * (kHead + 1));
    const bool forward = place <= kHead;
    UnitLease lease =
        engine.use(forward ? place : 2 * kHead + 1 - place, forward ? Pass::forward : Pass::backward);
    if (!forward) write_gradients(engine, lease, how);
    lease.end();
  }
  return engine.abandon();
}

TEST_P(Contributions, AStepAbandonedOnOneRankIsDroppedOnAll) {
  const std::vector<float> expected = run([](Engine& engine) {
    for (int step = 0; step < 2; ++step) toy_step(engine, {.step = step, .microbatches = 2});
  });
  const std::vector<float> found = run([](Engine& engine) {
    toy_step(engine, {.step = 0, .microbatches = 2});
    const std::vector<float> before = read_everything(engine);
    const int last = engine.world() - 1;
    for (int uses = 0; uses <= 4 * (kHead + 1); ++uses) {
      const StepResult result = engine.rank() == last ? abandon_behind(engine, uses)
                                                      : toy_step(engine, {.step = 7, .microbatches = 2});
      EXPECT_FALSE(result.applied);
      EXPECT_EQ(result.reason, SkipReason::abandoned);
      EXPECT_EQ(result.step, 1);
      EXPECT_EQ(result.first_nonfinite, "");
    }
    EXPECT_EQ(read_everything(engine), before);
    EXPECT_EQ(engine.steps_applied(), 1);
    EXPECT_TRUE(toy_step(engine, {.step = 1, .microbatches = 2}).applied);
  });
  EXPECT_EQ(found, expected);
}

TEST_P(Contributions, AStepOfNoWeightIsNotApplied) {
  const std::vector<float> expected = run([](Engine& engine) { toy_step(engine, {.microbatches = 2}); });
  const std::vector<float> found = run([](Engine& engine) {
    toy_step(engine, {.microbatches = 2});
    engine.begin(StepKind::train, 2);
    toy_uses(engine, {.step = 1, .microbatches = 2});
    const StepResult result = engine.step({.learning_rate = 0.1, .weight = 0.0, .loss = 3.0});
    EXPECT_FALSE(result.applied);
    EXPECT_EQ(result.reason, SkipReason::no_weight);
    EXPECT_EQ(result.loss, 0.0);
    EXPECT_EQ(engine.steps_applied(), 1);
  });
  EXPECT_EQ(found, expected);
}

INSTANTIATE_TEST_SUITE_P(Strategies, Contributions, ::testing::ValuesIn(cases()),
                         [](const ::testing::TestParamInfo<Case>& made) {
                           return "world" + std::to_string(made.param.world) + "_stage" +
                                  std::to_string(made.param.stage) +
                                  (made.param.reduce == ReduceWhen::each ? "_each" : "_last");
                         });

TEST(Abandon, ClosesWhatTheOrderOpens) {
  run_local(2, kBlocking, [](Communicator world) {
    EngineOptions options = toy_options(2, 3);
    options.order = {{kEmbed, Pass::forward, UseEdge::open},
                     {kBlock0, Pass::forward},
                     {kBlock1, Pass::forward},
                     {kHead, Pass::forward},
                     {kEmbed, Pass::forward, UseEdge::close},
                     {kEmbed, Pass::backward, UseEdge::open},
                     {kHead, Pass::backward},
                     {kBlock1, Pass::backward},
                     {kBlock0, Pass::backward},
                     {kEmbed, Pass::backward, UseEdge::close}};
    Engine engine(world, toy_units(DType::fp32), options);
    engine.initialize(toy_fill());
    const std::vector<float> before = read_everything(engine);
    for (int step = 0; step < 2; ++step) {
      engine.begin(StepKind::train);
      EXPECT_EQ(engine.abandon().reason, SkipReason::abandoned);
    }
    EXPECT_EQ(read_everything(engine), before);
  });
}

TEST(Abandon, IsSaidOfAnEvaluationToo) {
  for (const UpdateWhen update : {UpdateWhen::decided, UpdateWhen::reduced})
    run_local(2, kBlocking, [&](Communicator world) {
      EngineOptions options = toy_options(2, 3);
      options.strategy.update = update;
      options.programs.push_back({.kind = StepKind::evaluate});
      Engine engine(world, toy_units(DType::fp32), options);
      engine.initialize(toy_fill());
      for (const int abandoning : {1, 2}) {  // nobody the second time
        engine.begin(StepKind::evaluate);
        if (world.rank() != abandoning) toy_uses(engine, {}, StepKind::evaluate);
        const StepResult result = world.rank() == abandoning ? engine.abandon() : engine.step({.loss = 3.0});
        EXPECT_EQ(result.reason, abandoning == 1 ? SkipReason::abandoned : SkipReason::none);
        EXPECT_EQ(result.weight, abandoning == 1 ? 1.0 : 2.0);
        EXPECT_EQ(result.loss, 3.0);
      }
    });
}

TEST(Abandon, LeavesTheLossScale) {
  run_local(2, kBlocking, [](Communicator world) {
    EngineOptions options = toy_options(2, 1);
    options.loss_scaling = LossScaleOptions{.initial = 64, .growth_interval = 2};
    Engine engine(world, toy_units(DType::fp16), options);
    engine.initialize(toy_fill());
    toy_step(engine, {});
    const Engine::Counters before = engine.counters();
    engine.begin(StepKind::train);
    EXPECT_EQ(engine.abandon().loss_scale, 64);
    EXPECT_EQ(engine.counters().loss_scaler, before.loss_scaler);
    EXPECT_EQ(engine.counters().steps_applied, 1);
  });
}

}  // namespace
}  // namespace tessera::testing
