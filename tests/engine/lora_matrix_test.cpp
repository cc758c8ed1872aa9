// Adapters and frozen parameters in the bitwise matrix: stages, shards, replicas, pipelines, recomputation,
// offload and tensor blocks change no bit. Tensor ranks change what they change without adapters: rounding.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/engine/matrix.h"

namespace tessera::testing {
namespace {

using Cell = std::tuple<Family, DType>;

std::string cell_name(const ::testing::TestParamInfo<Cell>& info) {
  const auto& [family, dtype] = info.param;
  return name_of(family) + "_" + std::string(name_of(dtype));
}

RunConfig base(const Cell& cell) {
  RunConfig run{.family = std::get<Family>(cell), .dtype = std::get<DType>(cell), .steps = 5, .poison = true};
  run.lora_rank = 4;
  return run;
}

class LoraMatrix : public ::testing::TestWithParam<Cell> {};

void expect_learns(const RunResult& result) {
  EXPECT_NE(result.losses.front(), result.losses.back()) << "the reference run does not learn";
  for (const double norm : result.norms) EXPECT_GT(norm, 0.0);
}

// All strategies of one run, which has as many microbatches a step in all.
void expect_no_strategy_changes_a_bit(RunConfig run) {
  RunConfig plain = run;
  plain.prefetch = 0;
  plain.strict_order = true;
  plain.poison = false;
  const RunResult expected = run_training(plain);
  expect_learns(expected);
  int variant = 0;
  for (int stage = 0; stage <= 3; ++stage)
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      ++variant;
      if (!is_sampled(variant)) continue;
      RunConfig other = dealt(run, 1, 1 + variant % 2);
      other.stage = stage;
      other.recompute = recompute;
      other.prefetch = variant % 3;
      other.pipeline = 1 + variant / 2 % 2;
      if (variant % 6 == 3) other.schedule.schedule = PipelineSchedule::zb_h1;
      if (other.pipeline == 1) other.schedule = {};
      if (variant % 4 == 1) other.offload.activations = Space::host;
      if (variant % 5 == 2 && stage > 0) other.offload.states = variant % 2 == 0 ? Space::host : Space::disk;
      if (variant % 3 == 1 && stage == 3) other.offload.parameters = Space::host;
      const RunResult result = run_training(other);
      EXPECT_TRUE(same_bits(result, expected)) << to_string(other);
      EXPECT_EQ(result.fingerprint, expected.fingerprint) << to_string(other);
    }
}

TEST_P(LoraMatrix, NoStrategyChangesABit) { expect_no_strategy_changes_a_bit(base(GetParam())); }

// Whole units are frozen, also the first ones, on a pipeline rank that then has no backward.
TEST_P(LoraMatrix, WithFrozenUnitsNoStrategyChangesABit) {
  RunConfig run = base(GetParam());
  run.lora_rank = 0;
  run.frozen = {"embed.*", "block.0.*", "block.1.*", "block.2.mlp.*"};
  run.layers = 3;
  expect_no_strategy_changes_a_bit(run);
}

TEST_P(LoraMatrix, ReplicasWithSlicedStatesChangeNoBit) {
  RunConfig run = base(GetParam());
  run.blocks = 2;
  run.microbatches = 4;
  const RunResult expected = run_training(run);
  for (const int stage : {1, 3}) {
    RunConfig other = dealt(run, 2, 2);
    other.stage = stage;
    other.state_over_replicas = true;
    other.parameters_over_replicas = stage == 3;
    EXPECT_TRUE(same_bits(run_training(other), expected)) << to_string(other);
  }
}

// Frozen parameters stay as they are, and adapters move.
TEST_P(LoraMatrix, OnlyAdaptersMove) {
  RunConfig run = base(GetParam());
  run.stage = 3;
  run.world = 2;
  const auto model = std::make_shared<const Model>(small_model(run));
  run_local(run.world, {}, [&](Communicator world) {
    const TrainerOptions options = trainer_options(run);
    Trainer trainer(world, model, options);
    const auto read = [&] {
      std::map<std::string, std::vector<float>> values;
      const Layout& layout = trainer.engine().layout();
      for (ParameterId id = 0; id < layout.parameters(); ++id) {
        std::vector<float>& of = values[layout.parameter(id).name];
        of.resize(static_cast<std::size_t>(numel_of(layout.parameter(id).shape)));
        trainer.engine().read(id, StateKind::parameter, 0, of);
      }
      return values;
    };
    const auto before = read();
    for (int step = 0; step < 3; ++step)
      trainer.train_step(3e-3, fetch_for(run, world.rank(), step, *model, options.batch));
    for (const auto& [name, values] : read())
      EXPECT_EQ(values == before.at(name), name.find(".lora_") == name.npos) << name;
  });
}

// ------------------------------------------------------------------ tensor ranks

void expect_near(const RunConfig& run, const RunResult& found, const RunResult& expected) {
  const bool fp32 = run.dtype == DType::fp32;
  EXPECT_LT(furthest(found.losses, expected.losses), fp32 ? 1e-6 : 2e-3) << to_string(run);
  EXPECT_LT(furthest(found.norms, expected.norms), fp32 ? 1e-5 : 5e-2) << to_string(run);
}

TEST_P(LoraMatrix, OnTensorRanksLossesAreThoseOfOneRank) {
  RunConfig run = base(GetParam());
  run.heads = 4;
  if (run.family == Family::llama) run.kv_heads = 2;  // of which four ranks share each between two
  const RunResult alone = known_run(run);
  expect_learns(alone);
  for (const int ranks : {2, 4})
    for (const int chunks : {1, 3})
      for (const bool parallel : {true, false}) {
        if (chunks > 1 && !parallel) continue;
        RunConfig split = run;
        split.tensor = ranks;
        split.exchange_chunks = chunks;
        split.sequence_parallel = parallel;
        const RunResult& result = known_run(split);
        expect_near(split, result, alone);
        ASSERT_EQ(result.weights.size(), alone.weights.size());
      }
}

TEST_P(LoraMatrix, OnTensorRanksNoStrategyChangesABit) {
  RunConfig run = base(GetParam());
  run.heads = 4;
  run.tensor = 2;
  expect_no_strategy_changes_a_bit(run);
  run.exchange_chunks = 2;
  expect_no_strategy_changes_a_bit(run);
}

TEST_P(LoraMatrix, WithTensorBlocksNoWidthChangesABit) {
  RunConfig run = base(GetParam());
  run.heads = 4;
  run.tensor_blocks = 4;
  run.lora_rank = 32;  // of which a block has whole multiples of 64 elements
  const RunResult expected = run_training(run);
  expect_learns(expected);
  for (const int ranks : {2, 4}) {
    RunConfig split = run;
    split.tensor = ranks;
    split.stage = ranks - 1;
    EXPECT_TRUE(same_bits(run_training(split), expected)) << to_string(split);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, LoraMatrix,
                         ::testing::Combine(::testing::Values(Family::gpt2, Family::llama),
                                            ::testing::Values(DType::fp32, DType::bf16)),
                         cell_name);

}  // namespace
}  // namespace tessera::testing
