// What a plan keeps between steps is the formula of ZeRO plus the padding that the layout lists; what it
// takes is hardly more than the most that lives at once.
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/model.h"
#include "tessera/trainer.h"

namespace tessera::testing {
namespace {

TrainerOptions preset_options(int world, int stage, int microbatches) {
  TrainerOptions options;
  options.microbatches = microbatches;
  options.engine.mesh.shard = world;
  options.engine.strategy.placements = Placements::of_stage(stage);
  options.engine.optimizer.options = AdamWOptions{};
  options.engine.optimizer.groups = {{.name = "decay"}, {.name = "no_decay"}};
  options.batch = {.sequences = 1, .length = 256};
  return options;
}

// docs/memory.md: p bytes of the parameter, a = 4 of the accumulator, s of master and moments, Ψ elements on
// N ranks. One rank keeps no accumulator for a single microbatch.
std::int64_t persistent_by_formula(std::int64_t numel, int world, int stage, int microbatches, DType type) {
  const std::int64_t p = bytes_of(type), a = world * microbatches > 1 ? 4 : 0;
  const std::int64_t s = type == DType::fp32 ? 8 : 12;
  switch (stage) {
    case 0:
      return (p + a + s) * numel;
    case 1:
      return (p + a) * numel + s * numel / world;
    case 2:
      return p * numel + (a + s) * numel / world;
    default:
      return (p + a + s) * numel / world;
  }
}

class Memory : public ::testing::TestWithParam<std::string> {};

TEST_P(Memory, FollowsTheFormulaAndPacksTightly) {
  const Gpt2Config preset = Gpt2Config::preset(GetParam());
  double worst = 1.0;
  for (DType type : {DType::fp32, DType::bf16}) {
    const Model model = make_gpt2(preset, type);
    for (const auto& [world, microbatches] : {std::pair{1, 1}, {1, 2}, {2, 1}, {4, 1}, {8, 1}}) {
      for (int stage = 0; stage <= 3; ++stage) {
        const TrainerPlan plan = plan_trainer(model, preset_options(world, stage, microbatches));
        const std::string where = std::string(name_of(type)) + ", world " + std::to_string(world) +
                                  ", stage " + std::to_string(stage) + ", microbatches " +
                                  std::to_string(microbatches);
        const std::int64_t padded = plan.layout.total_numel() + plan.layout.padding_numel();
        EXPECT_EQ(padded % world, 0) << where;
        EXPECT_EQ(plan.layout.total_numel(), model.parameter_numel()) << where;
        std::int64_t scalars = 0;
        for (const Program& program : plan.programs)
          scalars = std::max(scalars, std::int64_t{8} * program.scalars_numel * world + 16);
        std::int64_t square_sums = 0;  // 8 bytes for every 1,024 elements of a shard
        for (const Flat& flat : plan.layout.flats())
          square_sums = std::max(square_sums, (flat.padded_numel / world + 1023) / 1024 * 8);
        const SpacePlan& device = plan.memory.space(Space::device);
        EXPECT_EQ(device.persistent_bytes,
                  persistent_by_formula(padded, world, stage, microbatches, type) + scalars + square_sums)
            << where;
        const auto gradients = device.at_peak[static_cast<std::size_t>(Category::gradients)];
        if (world * microbatches == 1) {
          EXPECT_LE(gradients, bytes_of(type) * padded) << where;
        }
        // The padding is gaps of less than 256 bytes behind parameters, and a tail below 256 bytes a shard.
        const auto bound = static_cast<std::int64_t>(plan.layout.parameters()) * 256 +
                           static_cast<std::int64_t>(plan.layout.flats().size()) * 256 * world;
        EXPECT_LE(plan.layout.padding_numel() * bytes_of(type), bound) << where;
        EXPECT_GE(device.arena_bytes, device.live_peak_bytes) << where;
        worst = std::max(
            worst, static_cast<double>(device.arena_bytes) / static_cast<double>(device.live_peak_bytes));
        EXPECT_LE(static_cast<double>(device.arena_bytes), 1.02 * static_cast<double>(device.live_peak_bytes))
            << where;
      }
    }
  }
  RecordProperty("worst_arena_over_live_peak", std::to_string(worst));
  printf("arena over live peak, worst: %.5f\n", worst);
}

INSTANTIATE_TEST_SUITE_P(Presets, Memory, ::testing::ValuesIn(Gpt2Config::presets()),
                         [](const ::testing::TestParamInfo<std::string>& made) {
                           std::string name = made.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tessera::testing
