// Gradients that are not finite: every rank skips the update and says why; loss scaling backs off and grows.
#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "tessera/layout.h"
#include "tests/engine/toy.h"

namespace tessera::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A step's gradients with `value` at one element on one rank in one microbatch.
Gradient spoiled(GradientAt where, float value) {
  return [=](const GradientAt& at) {
    const bool here = at.parameter == where.parameter && at.index == where.index && at.rank == where.rank &&
                      at.microbatch == where.microbatch;
    return here ? value : toy_gradient(at);
  };
}

class NotFinite : public ::testing::TestWithParam<std::tuple<int, int, ReduceWhen>> {
 protected:
  int world() const { return std::get<0>(GetParam()); }
  EngineOptions options() const {
    EngineOptions made = toy_options(world(), std::get<1>(GetParam()));
    made.strategy.reduce = std::get<2>(GetParam());
    made.programs = {{.kind = StepKind::train, .microbatches = 2}};
    return made;
  }
};

TEST_P(NotFinite, SkipsOnAllRanksAndNamesTheParameter) {
  run_local(world(), kBlocking, [&](Communicator comm) {
    Engine engine(comm, toy_units(DType::bf16), options());
    engine.initialize(toy_fill());
    EXPECT_TRUE(toy_step(engine, {.step = 0, .microbatches = 2}).applied);
    const std::vector<float> before = read_everything(engine);
    const Layout& layout = engine.layout();
    for (ParameterId id = 0; id < layout.parameters(); ++id) {
      if (!layout.parameter(id).trainable) continue;
      const GradientAt where{
          .parameter = id, .index = layout.place(id).numel - 1, .microbatch = id % 2, .rank = world() - 1};
      for (float value : {kNan, kInf, -kInf}) {
        const StepResult result =
            toy_step(engine, {.step = 1, .microbatches = 2, .gradient = spoiled(where, value)});
        EXPECT_FALSE(result.applied);
        EXPECT_EQ(result.reason, SkipReason::not_finite);
        EXPECT_EQ(result.first_nonfinite, layout.parameter(layout.place(id).home).name);
        EXPECT_EQ(result.step, 1);
        EXPECT_EQ(result.weight, engine.world() * 2.0 + engine.world() * (engine.world() - 1) / 2.0);
      }
    }
    EXPECT_EQ(read_everything(engine), before) << "moments, masters and parameters stay as they were";
    EXPECT_EQ(engine.steps_applied(), 1);
    // Two of them: the first in the model's order counts.
    const auto two = [&](const GradientAt& at) {
      if (at.parameter == kHeadWeight + 1 && at.index == 0 && at.rank == 0) return kInf;
      if (at.parameter == kBlockScale && at.rank == world() - 1) return kNan;
      return toy_gradient(at);
    };
    EXPECT_EQ(toy_step(engine, {.step = 1, .microbatches = 2, .gradient = two}).first_nonfinite,
              "block.0.scale");
    EXPECT_TRUE(toy_step(engine, {.step = 1, .microbatches = 2}).applied) << "the next step is untouched";
  });
}

TEST_P(NotFinite, TheStepBehindASkippedOneEqualsOneWithoutIt) {
  std::vector<float> with, without;
  run_local(world(), kBlocking, [&](Communicator comm) {
    for (bool skip : {false, true}) {
      Engine engine(comm, toy_units(DType::fp32), options());
      engine.initialize(toy_fill());
      toy_step(engine, {.step = 0, .microbatches = 2});
      if (skip) {
        const Gradient bad = spoiled({.parameter = kEmbedWeight, .rank = world() - 1}, kNan);
        EXPECT_FALSE(toy_step(engine, {.step = 5, .microbatches = 2, .gradient = bad}).applied);
      }
      toy_step(engine, {.step = 1, .microbatches = 2});
      const std::vector<float> all = read_everything(engine);
      if (comm.rank() == 0) (skip ? with : without) = all;
    }
  });
  EXPECT_EQ(with, without);
}

INSTANTIATE_TEST_SUITE_P(Strategies, NotFinite,
                         ::testing::Combine(::testing::Values(1, 2, 4), ::testing::Values(0, 1, 2, 3),
                                            ::testing::Values(ReduceWhen::each, ReduceWhen::last)),
                         [](const auto& made) {
                           return "world" + std::to_string(std::get<0>(made.param)) + "_stage" +
                                  std::to_string(std::get<1>(made.param)) +
                                  (std::get<2>(made.param) == ReduceWhen::each ? "_each" : "_last");
                         });

// Gradients of 4 in fp16, twice that where two units share a parameter, overflow at scales of 2^13 and above.
constexpr double kFits = 4096;
float fours(const GradientAt& at) { return at.index % 2 == 0 ? 4.0f : -4.0f; }

TEST(LossScaling, BacksOffUntilTheGradientsFitAndGrowsAgain) {
  for (int stage : {0, 1, 2, 3}) {
    std::vector<float> scaled, plain;
    run_local(2, kBlocking, [&](Communicator world) {
      EngineOptions options = toy_options(2, stage);
      options.loss_scaling = LossScaleOptions{.initial = 4 * kFits, .growth_interval = 2, .max = 4 * kFits};
      Engine engine(world, toy_units(DType::fp16), options);
      engine.initialize(toy_fill());
      // Two steps too large, two that fit, one too large after growing, two that fit.
      const double scales[] = {4 * kFits, 2 * kFits, kFits, kFits, 2 * kFits, kFits, kFits};
      std::int64_t applied = 0;
      for (double scale : scales) {
        EXPECT_EQ(engine.loss_scale(), scale);
        const StepResult result = toy_step(engine, {.step = static_cast<int>(applied), .gradient = fours});
        EXPECT_EQ(result.loss_scale, scale);
        EXPECT_EQ(result.applied, scale == kFits);
        EXPECT_EQ(result.reason, scale == kFits ? SkipReason::none : SkipReason::not_finite);
        EXPECT_EQ(result.first_nonfinite, scale == kFits ? "" : "embed.weight");
        if (result.applied) ++applied;
        EXPECT_EQ(result.step, applied);
      }
      EXPECT_EQ(engine.loss_scale(), 2 * kFits);
      EXPECT_EQ(engine.counters().loss_scaler.value().skipped, 3);
      std::vector<float> all = read_everything(engine);
      if (world.rank() == 0) scaled = std::move(all);

      // The same updates at a fixed scale, the skipped steps left out.
      options.loss_scaling = LossScaleOptions{.initial = 64, .growth_interval = 1000};
      Engine other(world, toy_units(DType::fp16), options);
      other.initialize(toy_fill());
      for (int step = 0; step < applied; ++step) {
        const StepResult result = toy_step(other, {.step = step, .gradient = fours});
        EXPECT_TRUE(result.applied);
        EXPECT_EQ(result.loss_scale, 64);
      }
      all = read_everything(other);
      if (world.rank() == 0) plain = std::move(all);
    });
    EXPECT_EQ(scaled, plain) << "stage " << stage << ": scaling by powers of two leaves no trace";
  }
}

}  // namespace
}  // namespace tessera::testing
