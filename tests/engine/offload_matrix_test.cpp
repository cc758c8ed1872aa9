// What is off the device changes no bit: optimizer states, their share on the device, parameters; over
// stages, worlds, microbatches, types and a pipeline.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/engine/small_models.h"

namespace tessera::testing {
namespace {

std::vector<Offload> tiers(int stage) {
  std::vector<Offload> all;
  for (const Space states : {Space::device, Space::host, Space::disk})
    for (const double on_device : {0.0, 0.5})
      for (const Space parameters : {Space::device, Space::host, Space::disk}) {
        if (states == Space::device && on_device > 0) continue;
        if (parameters != Space::device && stage < 3) continue;
        all.push_back({.states = states, .states_on_device = on_device, .parameters = parameters});
      }
  return all;
}

void expect_equal(const RunConfig& run) {
  ASSERT_TRUE(same_bits(run_training(run), plain_run(run))) << to_string(run);
}

class OffloadMatrix : public ::testing::TestWithParam<SmallModel> {};

TEST_P(OffloadMatrix, ChangesNoBit) {
  const auto [family, dtype, world] = GetParam();
  int variant = 0;
  for (int stage = 1; stage <= 3; ++stage)
    for (const Offload& offload : tiers(stage))
      for (int mixture = 0; mixture < 12; ++mixture, ++variant) {
        if (!is_drawn(part_of(GetParam()), variant, 3)) continue;
        RunConfig run{.family = family,
                      .world = world,
                      .pipeline = 1 + mixture % 2,
                      .stage = stage,
                      .dtype = dtype,
                      .recompute = static_cast<Recompute>(mixture / 2 % 3),
                      .steps = 2,
                      .poison = true};
        run.offload = offload;
        run.offload.activations = mixture < 6 ? Space::device : Space::host;
        run.offload.staged = 1 + variant / 12 % 3;
        run.prefetch = variant % 5 % 3;
        run.microbatches = 1 + variant / 12 % 2;
        run.reduce = variant % 7 < 4 ? ReduceWhen::each : ReduceWhen::last;
        run.strict_order = variant % 5 == 4;
        expect_equal(run);
      }
}

INSTANTIATE_TEST_SUITE_P(Models, OffloadMatrix, small_models(), name_of_small_model);

TEST(OffloadReplicas, ChangeNoBit) {
  for (const Space states : {Space::host, Space::disk})
    for (const Space parameters : {Space::device, Space::host})
      for (const bool sliced : {false, true}) {
        RunConfig run{
            .world = 2, .replicate = 2, .stage = 3, .dtype = DType::bf16, .steps = 3, .poison = true};
        run.offload = {.states = states, .parameters = parameters};
        run.state_over_replicas = run.parameters_over_replicas = sliced;
        expect_equal(run);
      }
}

}  // namespace
}  // namespace tessera::testing
