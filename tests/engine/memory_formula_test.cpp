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

// docs/memory.md: p bytes of the parameter, s of master and moments, Ψ elements on N ranks.
std::int64_t persistent_by_formula(std::int64_t numel, int world, int stage, DType type) {
  const std::int64_t p = bytes_of(type), s = type == DType::fp32 ? 8 : 12;
  return p * numel / (stage >= 3 ? world : 1) + s * numel / (stage >= 1 ? world : 1);
}
// a = 4 of the accumulators. One rank has none for a single microbatch, of which no stage that shards states
// keeps more than a shard.
std::int64_t accumulators_by_formula(std::int64_t numel, int world, int stage, int microbatches) {
  const std::int64_t a = world * microbatches > 1 ? 4 : 0;
  return a * numel / (stage >= 1 ? world : 1);
}

// Of the training program, where each lives from a backward of the first microbatch to an update.
std::int64_t accumulator_bytes(const Program& program) {
  const auto count = program.instructions.count();
  InstructionId first_backward = count, first_update = count;
  for (InstructionId id = count - 1; id >= 0; --id) {
    const Instruction& instruction = program.instructions[id];
    if (instruction.op == Opcode::use && instruction.pass == Pass::backward) first_backward = id;
    if (instruction.op == Opcode::update) first_update = id;
  }
  std::int64_t bytes = 0;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.role != BufferRole::accumulator) continue;
    bytes += buffer.bytes;
    EXPECT_FALSE(buffer.persistent) << buffer.name;
    EXPECT_EQ(buffer.lifetimes.size(), 1u) << buffer.name;
    EXPECT_GT(buffer.lifetimes.front().first, first_backward) << buffer.name;
    EXPECT_GE(buffer.lifetimes.back().last, first_update) << buffer.name;
  }
  return bytes;
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
          scalars = std::max(scalars, std::int64_t{8} * program.scalars_numel * world + kDecisionBytes);
        const SpacePlan& device = plan.memory.space(Space::device);
        EXPECT_EQ(device.persistent_bytes, persistent_by_formula(padded, world, stage, type) + scalars)
            << where;
        EXPECT_EQ(accumulator_bytes(plan.programs[0]),
                  accumulators_by_formula(padded, world, stage, microbatches))
            << where;
        // What is alive at the end of backward, when no activation is any more.
        EXPECT_GE(device.live_peak_bytes,
                  device.persistent_bytes + accumulators_by_formula(padded, world, stage, microbatches))
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

// Moments of 2 bytes: s is 8 behind 16-bit parameters and 4 where fp32 ones are their own master, or 2 less a
// moment.
TEST(MemoryOfMoments, IsHalfInBf16) {
  for (const DType type : {DType::fp32, DType::bf16}) {
    const Model model = make_gpt2(Gpt2Config::preset("gpt2-124m"), type);
    for (const OptimizerOptions& kind :
         {OptimizerOptions(AdamWOptions{}), OptimizerOptions(SgdOptions{.momentum = 0.9}),
          OptimizerOptions(SgdOptions{}), OptimizerOptions(LionOptions{})})
      for (const int stage : {0, 1, 3}) {
        TrainerOptions options = preset_options(4, stage, 1);
        options.engine.optimizer.options = kind;
        const TrainerPlan wide = plan_trainer(model, options);
        options.engine.optimizer.moment_type = DType::bf16;
        const TrainerPlan narrow = plan_trainer(model, options);
        const std::int64_t padded = wide.layout.total_numel() + wide.layout.padding_numel();
        EXPECT_EQ(wide.memory.space(Space::device).persistent_bytes -
                      narrow.memory.space(Space::device).persistent_bytes,
                  2 * options.engine.optimizer.moments() * padded / (stage >= 1 ? 4 : 1));
      }
  }
}

// What is frozen has p bytes an element, and neither states nor gradients.
TEST(MemoryOfAdapters, IsThatOfTheirElements) {
  for (const DType type : {DType::fp32, DType::bf16})
    for (const int world : {1, 4})
      for (const int stage : {0, 1, 2, 3}) {
        LlamaConfig config = LlamaConfig::preset("llama-160m");
        config.lora = {.rank = 16, .alpha = 32.0, .targets = {"q_proj", "v_proj"}};
        const Model model = make_llama(config, type);
        const TrainerPlan plan = plan_trainer(model, preset_options(world, stage, 1));
        const std::string where = std::string(name_of(type)) + ", world " + std::to_string(world) +
                                  ", stage " + std::to_string(stage);
        std::int64_t trained = 0, frozen = 0;
        for (const Flat& flat : plan.layout.flats()) (flat.trainable ? trained : frozen) += flat.padded_numel;
        // Of 12 layers of 768 channels, each with two of A [16, 768] and B [768, 16].
        EXPECT_EQ(model.trained_numel(), 12 * 2 * 2 * 16 * 768) << where;
        EXPECT_EQ(trained, model.trained_numel()) << where << ": multiples of all alignments";
        std::int64_t scalars = 0;
        for (const Program& program : plan.programs)
          scalars = std::max(scalars, std::int64_t{8} * program.scalars_numel * world + kDecisionBytes);
        const std::int64_t of_frozen = bytes_of(type) * frozen / (stage >= 3 ? world : 1);
        EXPECT_EQ(plan.memory.space(Space::device).persistent_bytes,
                  persistent_by_formula(trained, world, stage, type) + of_frozen + scalars)
            << where;
        EXPECT_EQ(accumulator_bytes(plan.programs[0]), accumulators_by_formula(trained, world, stage, 1))
            << where;
        for (const Buffer& buffer : plan.programs[0].buffers) {
          const bool of_weights =
              buffer.category == Category::parameters || buffer.category == Category::gathered_parameters;
          EXPECT_TRUE(buffer.flat < 0 || plan.layout.flat(buffer.flat).trainable || of_weights)
              << buffer.name;
        }
      }
}

INSTANTIATE_TEST_SUITE_P(Presets, Memory, ::testing::ValuesIn(Gpt2Config::presets()),
                         [](const ::testing::TestParamInfo<std::string>& made) {
                           std::string name = made.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tessera::testing
