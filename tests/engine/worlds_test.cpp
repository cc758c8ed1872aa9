// The number of shard ranks changes no bit: with as many microbatches a step in all, reduced one by one,
// every world has the same losses and norms, clips alike, and ends with the same weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "tests/engine/matrix.h"
#include "tests/engine/toy.h"

namespace tessera::testing {
namespace {

constexpr int kInAll = 24;  // microbatches of a step
constexpr int kWorlds[] = {1, 2, 3, 4, 6, 8};

// ------------------------------------------------------------------ gradients that are written

// What one rank that takes every microbatch would see.
std::int64_t microbatch_of_step(const GradientAt& at, int world) { return at.microbatch * world + at.rank; }

// Of all sizes, so that every order of addition in float64 would round otherwise.
float uneven_gradient(const GradientAt& at, int world) {
  const auto key = static_cast<std::uint64_t>(at.parameter * 1000 + at.step);
  const auto place = static_cast<std::uint64_t>(microbatch_of_step(at, world) * 100000 + at.index);
  const double size = std::ldexp(1.0, static_cast<int>(40.0 * uniform(3, key, place)) - 38);
  return static_cast<float>((uniform(4, key, place) - 0.5) * size);
}

// From 2^-60 to 2^60, and of either sign.
LossTotal uneven_loss(int step, int microbatch_of_step) {
  const auto key = static_cast<std::uint64_t>(step), place = static_cast<std::uint64_t>(microbatch_of_step);
  const double size = std::ldexp(1.0, static_cast<int>(120.0 * uniform(5, key, place)) - 60);
  return {.sum = (uniform(6, key, place) - 0.5) * size, .counted = 1 + microbatch_of_step % 7};
}

struct ToyCase {
  DType type = DType::fp32;
  DType moments = DType::fp32;
  double max_norm = 0.0;
};

struct Outcome {
  std::vector<double> losses, norms, parameter_norms;
  std::vector<float> states;
};

Outcome train_toy(const ToyCase& of, int world, int stage) {
  EngineOptions options = toy_options(world, stage);
  options.strategy.reduce = ReduceWhen::each;
  options.optimizer.moment_type = of.moments;
  options.clip.max_norm = of.max_norm;
  options.parameter_norms = true;
  const int microbatches = kInAll / world;
  options.programs = {{.kind = StepKind::train, .microbatches = microbatches}};
  Outcome outcome;
  std::mutex mutex;
  run_local(world, kBlocking, [&](Communicator comm) {
    Engine engine(comm, toy_units(of.type), options);
    engine.initialize(toy_fill());
    Outcome own;
    for (int step = 0; step < 3; ++step) {
      engine.begin(StepKind::train, microbatches);
      toy_uses(engine, {.step = step, .microbatches = microbatches, .gradient = [=](const GradientAt& at) {
                          return uneven_gradient(at, world);
                        }});
      for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
        const LossTotal total = uneven_loss(step, microbatch * world + comm.rank());
        engine.add_loss(&total);
      }
      const StepResult result = engine.step({.learning_rate = 0.01, .weight = 0.0, .loss = 0.0});
      EXPECT_TRUE(result.applied);
      own.losses.push_back(result.loss);
      own.norms.push_back(result.gradient_norm);
      own.parameter_norms.insert(own.parameter_norms.end(), result.parameter_norms.begin(),
                                 result.parameter_norms.end());
    }
    own.states = read_everything(engine);
    const std::lock_guard lock(mutex);
    if (comm.rank() == 0) outcome = std::move(own);
  });
  return outcome;
}

class ToyWorlds : public ::testing::TestWithParam<ToyCase> {};

TEST_P(ToyWorlds, HaveTheSameBits) {
  const ToyCase& of = GetParam();
  const Outcome alone = train_toy(of, 1, 0);
  for (const double norm : alone.norms) EXPECT_GT(norm, 1.5 * of.max_norm) << "clipping does not bite";
  int index = 0;
  for (const int world : kWorlds)
    for (int stage = 0; stage <= 3; ++stage) {
      if (!is_sampled(index++)) continue;
      const Outcome outcome = train_toy(of, world, stage);
      const std::string what = "world " + std::to_string(world) + ", stage " + std::to_string(stage);
      EXPECT_TRUE(same_bits("losses", outcome.losses, alone.losses)) << what;
      EXPECT_TRUE(same_bits("norms", outcome.norms, alone.norms)) << what;
      EXPECT_TRUE(same_bits("parameters' norms", outcome.parameter_norms, alone.parameter_norms)) << what;
      EXPECT_TRUE(same_bits("states", outcome.states, alone.states)) << what;
    }
}

INSTANTIATE_TEST_SUITE_P(
    Types, ToyWorlds,
    ::testing::Values(ToyCase{}, ToyCase{.max_norm = 0.001}, ToyCase{.type = DType::bf16, .max_norm = 0.001},
                      ToyCase{.type = DType::bf16, .moments = DType::bf16, .max_norm = 0.001},
                      ToyCase{.type = DType::fp16}),
    [](const ::testing::TestParamInfo<ToyCase>& made) {
      return std::string(name_of(made.param.type)) + "_moments_" + std::string(name_of(made.param.moments)) +
             (made.param.max_norm > 0 ? "_clipped" : "");
    });

// ------------------------------------------------------------------ models

struct ModelCase {
  Family family = Family::llama;
  double max_norm = 0.0;
};

class ModelWorlds : public ::testing::TestWithParam<ModelCase> {};

// A head of its own: a flat that pipeline ranks share is reduced on each.
TEST_P(ModelWorlds, TrainToTheSameBits) {
  const auto run_on = [&](int world, int pipeline, int stage) {
    return RunConfig{.family = GetParam().family,
                     .world = world,
                     .pipeline = pipeline,
                     .stage = stage,
                     .reduce = ReduceWhen::each,
                     .microbatches = kInAll / world,
                     .steps = 3,
                     .max_norm = GetParam().max_norm,
                     .poison = true};
  };
  const RunResult alone = run_training(run_on(1, 1, 0));
  for (const double norm : alone.norms)
    EXPECT_GT(norm, 1.5 * GetParam().max_norm) << "clipping does not bite";
  int index = 0;
  for (const int world : kWorlds)
    for (const int pipeline : {1, 2}) {
      if (pipeline > 1 && (GetParam().family == Family::gpt2 || world * pipeline > 8)) continue;
      const int stage = index++ % 4;
      if (!is_sampled(index)) continue;
      const RunConfig run = run_on(world, pipeline, stage);
      const RunResult result = run_training(run);
      EXPECT_TRUE(same_bits(result, alone)) << to_string(run);
    }
}

INSTANTIATE_TEST_SUITE_P(Models, ModelWorlds,
                         ::testing::Values(ModelCase{}, ModelCase{.max_norm = 0.05},
                                           ModelCase{.family = Family::gpt2, .max_norm = 0.05}),
                         [](const ::testing::TestParamInfo<ModelCase>& made) {
                           return std::string(made.param.family == Family::llama ? "llama" : "gpt2") +
                                  (made.param.max_norm > 0 ? "_clipped" : "");
                         });

}  // namespace
}  // namespace tessera::testing
