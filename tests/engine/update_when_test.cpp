// Updates at other times than behind the decision: the same bits. Where they come as soon as gradients are
// reduced, what then cannot be decided is refused or told.
#include <gtest/gtest.h>

#include <limits>

#include "tests/engine/failing.h"
#include "tests/engine/small_models.h"
#include "tests/refusal.h"

namespace tessera::testing {
namespace {

// ---- the same bits ----

class UpdateTimes : public ::testing::TestWithParam<SmallModel> {};

TEST_P(UpdateTimes, ChangeNoBit) {
  const auto [family, dtype, world] = GetParam();
  int variant = 0;
  for (int stage = 0; stage <= 3; ++stage)
    for (const Space states : {Space::device, Space::host, Space::disk})
      for (const Space parameters : {Space::device, Space::host, Space::disk})
        for (const double on_device : {0.0, 0.5})
          for (const int microbatches : {1, 3})
            for (const auto& [pipeline, update] :
                 {std::pair(1, UpdateWhen::reduced), std::pair(2, UpdateWhen::reduced),
                  std::pair(1, UpdateWhen::next), std::pair(2, UpdateWhen::next)}) {
              if (update == UpdateWhen::next && states == Space::device) continue;
              if (parameters != Space::device && stage < 3) continue;
              if (states == Space::device && on_device > 0) continue;
              if (!is_drawn(part_of(GetParam()), variant++, 3)) continue;
              RunConfig run{.family = family,
                            .world = world,
                            .pipeline = pipeline,
                            .stage = stage,
                            .reduce = variant % 7 < 4 ? ReduceWhen::each : ReduceWhen::last,
                            .dtype = dtype,
                            .prefetch = variant % 5 % 3,
                            .strict_order = variant % 5 == 4,
                            .recompute = static_cast<Recompute>(variant % 3),
                            .microbatches = microbatches,
                            .steps = 2,
                            .max_norm = update == UpdateWhen::next ? 0.5 : 0,
                            .poison = true,
                            .offload = {.states = states,
                                        .states_on_device = on_device,
                                        .parameters = parameters,
                                        .staged = 1 + variant % 3,
                                        .activations = variant % 4 == 0 ? Space::host : Space::device},
                            .update = update};
              ASSERT_TRUE(same_bits(run_training(run), plain_run(run))) << to_string(run);
            }
}

INSTANTIATE_TEST_SUITE_P(Models, UpdateTimes, small_models(), name_of_small_model);

TEST(UpdateTimesOfReplicas, ChangeNoBit) {
  for (const int stage : {0, 1, 2, 3})
    for (const bool sliced : {false, true})
      for (const auto& [states, update] :
           {std::pair(Space::device, UpdateWhen::reduced), std::pair(Space::host, UpdateWhen::reduced),
            std::pair(Space::host, UpdateWhen::next)}) {
        if (sliced && stage == 0) continue;
        RunConfig run{.world = 2,
                      .replicate = 2,
                      .stage = stage,
                      .dtype = DType::bf16,
                      .steps = 2,
                      .max_norm = 0,
                      .poison = true,
                      .offload = {.states = states},
                      .update = update};
        run.state_over_replicas = sliced;
        run.parameters_over_replicas = sliced && stage == 3;
        ASSERT_TRUE(same_bits(run_training(run), plain_run(run))) << to_string(run);
      }
}

// ---- the verbs ----

EngineOptions early_options(int world) {
  EngineOptions options = toy_options(world, 2);
  options.strategy.update = UpdateWhen::reduced;
  return options;
}

// All ranks' toy_weight.
StepTerms terms_of(int world) { return {.learning_rate = 0.01, .weight = world * (world + 3) / 2.0}; }

StepResult early_step(Engine& engine, const ToyStep& step, const StepTerms& terms) {
  engine.begin(StepKind::train, 1, terms);
  toy_uses(engine, step);
  return engine.step({.learning_rate = step.learning_rate,
                      .weight = toy_weight(engine.rank()),
                      .loss = toy_loss(engine.rank(), step.step)});
}

// What the body, on the one rank of a world, fails with.
std::string refusal(const std::function<void(Engine&)>& body) {
  return run_failing(early_options(1), [&](Engine& engine, int) { body(engine); })[0].message;
}

TEST(EarlyUpdateVerbs, TermsMustBeGiven) {
  expect_words(refusal([](Engine& engine) { engine.begin(StepKind::train); }), {"begin: terms.weight is 0"});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_words(refusal([&](Engine& engine) { engine.begin(StepKind::train, 1, {.weight = nan}); }),
               {"begin: terms.weight is nan"});
  for (const double lost : {1e46, 1e-42})  // fp32 would scale the gradient by 0, and by infinity
    expect_words(refusal([&](Engine& engine) { engine.begin(StepKind::train, 1, {.weight = lost}); }),
                 {"begin: terms.weight is 1e", "fp32"});
}

TEST(EarlyUpdateVerbs, TermsMustHold) {
  StepTerms other = terms_of(1);
  other.weight += 1;
  expect_words(refusal([&](Engine& engine) { early_step(engine, {}, other); }),
               {"add up to 2", "began with 3"});
  other = terms_of(1);
  other.learning_rate = 0.5;
  expect_words(refusal([&](Engine& engine) { early_step(engine, {}, other); }),
               {"is 0.01", "began with 0.5"});
}

TEST(EarlyUpdateVerbs, NothingIsAbandoned) {
  expect_words(refusal([&](Engine& engine) {
                 engine.begin(StepKind::train, 1, terms_of(1));
                 engine.abandon();
               }),
               {"abandon", "strategy.update"});
}

TEST(EarlyUpdateVerbs, ClippingAndScalingAreRefused) {
  run_local(1, kBlocking, [&](Communicator world) {
    EngineOptions options = early_options(1);
    options.clip.max_norm = 1;
    EXPECT_THROW(Engine(world, toy_units(DType::bf16), options), UsageError);
    options = early_options(1);
    options.loss_scaling.emplace();
    EXPECT_THROW(Engine(world, toy_units(DType::bf16), options), UsageError);
  });
}

TEST(EarlyUpdateVerbs, WhatIsNotFiniteIsAppliedAndTold) {
  for (const int world : {1, 2})
    run_local(world, kBlocking, [&](Communicator comm) {
      Engine engine(comm, toy_units(DType::bf16), early_options(world));
      engine.initialize(toy_fill());
      const StepResult good = early_step(engine, {.step = 0}, terms_of(world));
      EXPECT_TRUE(good.applied);
      EXPECT_EQ(good.reason, SkipReason::none);
      const auto spoilt = [&](const GradientAt& at) {
        return at.parameter == kBlockWeight && at.index == 5 && at.rank == world - 1
                   ? std::numeric_limits<float>::infinity()
                   : toy_gradient(at);
      };
      const StepResult bad = early_step(engine, {.step = 1, .gradient = spoilt}, terms_of(world));
      EXPECT_TRUE(bad.applied);
      EXPECT_EQ(bad.reason, SkipReason::not_finite);
      EXPECT_EQ(bad.first_nonfinite, "block.0.weight");
      EXPECT_EQ(bad.step, 2);
    });
}

// Evaluations know no terms.
TEST(EarlyUpdateVerbs, EvaluationsNeedNone) {
  run_local(1, kBlocking, [&](Communicator world) {
    EngineOptions options = early_options(1);
    options.programs = {{.kind = StepKind::train}, {.kind = StepKind::evaluate}};
    Engine engine(world, toy_units(DType::bf16), options);
    engine.initialize(toy_fill());
    engine.begin(StepKind::evaluate);
    toy_uses(engine, {}, StepKind::evaluate);
    EXPECT_EQ(engine.step({.weight = 2, .loss = 3}).loss, 1.5);
    EXPECT_EQ(engine.steps_applied(), 0);
  });
}

}  // namespace
}  // namespace tessera::testing
