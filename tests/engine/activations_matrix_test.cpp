// What becomes of activations between forward and backward changes no bit: nothing, selective and full
// recomputation, waiting on the device or the host, of all units alike and of each by itself; and what it
// leaves in memory is what it should.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "tessera/plan_memory.h"
#include "tests/engine/matrix.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kLayers = 3;
constexpr int kUnits = 5;  // with the embedding and the head

IdVector<ActivationChoice> choices(std::initializer_list<Recompute> recompute) {
  std::vector<ActivationChoice> made;
  for (const Recompute unit : recompute) made.push_back({.recompute = unit});
  return made;
}

std::vector<ActivationChoice> on_host(IdVector<ActivationChoice> choices, std::initializer_list<int> units) {
  for (const int unit : units) choices[unit].kept = Space::host;
  return choices;
}

// All alike, then mixtures.
std::vector<std::vector<ActivationChoice>> mixtures() {
  constexpr Recompute none = Recompute::none, selective = Recompute::selective, full = Recompute::full;
  return {choices({selective, selective, selective, selective, selective}),
          choices({full, full, full, full, full}),
          choices({none, full, selective, none, none}),
          choices({full, none, selective, full, selective}),
          choices({selective, selective, none, selective, full}),
          choices({none, none, full, selective, none}),
          on_host(choices({none, none, none, none, none}), {0, 1, 2, 3, 4}),
          on_host(choices({selective, selective, selective, selective, selective}), {0, 1, 2, 3, 4}),
          on_host(choices({full, full, full, full, full}), {0, 1, 2, 3, 4}),
          on_host(choices({none, selective, none, full, none}), {1, 2}),
          on_host(choices({full, none, selective, selective, full}), {2, 3})};
}

struct Cell {
  Family family;
  int world, pipeline;
  DType dtype;
};

class ActivationsMatrix : public ::testing::TestWithParam<Cell> {};

TEST_P(ActivationsMatrix, EveryChoiceGivesTheSameBits) {
  const Cell cell = GetParam();
  RunConfig run{.family = cell.family,
                .world = cell.world,
                .pipeline = cell.pipeline,
                .reduce = ReduceWhen::each,
                .dtype = cell.dtype,
                .steps = 6,
                .poison = true,
                .layers = kLayers};
  if (cell.pipeline > 1) run.reduce = ReduceWhen::last;
  const RunResult expected = run_training(run);
  EXPECT_NE(expected.losses.front(), expected.losses.back()) << "the reference run does not learn";
  int variant = 0;
  for (const int stage : {1, 3})
    for (const std::vector<ActivationChoice>& mixture : mixtures()) {
      run.stage = stage;
      run.prefetch = ++variant % 3;
      run.strict_order = variant % 4 == 0;
      run.unit_activations = mixture;
      ASSERT_TRUE(same_bits(run_training(run), expected)) << to_string(run);
    }
}

std::string cell_name(const ::testing::TestParamInfo<Cell>& info) {
  const Cell& cell = info.param;
  return std::string(cell.family == Family::llama ? "llama" : "gpt2") + "_world" +
         std::to_string(cell.world) + "_pipeline" + std::to_string(cell.pipeline) + "_" +
         std::string(name_of(cell.dtype));
}

INSTANTIATE_TEST_SUITE_P(
    Models, ActivationsMatrix,
    ::testing::Values(Cell{Family::gpt2, 1, 1, DType::fp32}, Cell{Family::gpt2, 1, 1, DType::bf16},
                      Cell{Family::gpt2, 2, 1, DType::fp32}, Cell{Family::gpt2, 2, 1, DType::bf16},
                      Cell{Family::gpt2, 1, 2, DType::bf16}, Cell{Family::llama, 1, 1, DType::fp32},
                      Cell{Family::llama, 1, 1, DType::bf16}, Cell{Family::llama, 2, 1, DType::fp32},
                      Cell{Family::llama, 2, 1, DType::bf16}, Cell{Family::llama, 1, 2, DType::fp32}),
    cell_name);

TrainerPlan plan_of(RunConfig run, Recompute recompute) {
  run.recompute = recompute;
  TrainerOptions options = trainer_options(run);
  options.batch.sequences = 8;
  return plan_trainer(small_model(run), options);
}

// Bytes of activations that live when the first backward begins, which is when most do.
std::int64_t activations_before_backward(const TrainerPlan& plan) {
  const Program& program = plan.programs.front();
  const auto backward = std::ranges::find(program.instructions, Pass::backward, &Instruction::pass);
  return live_bytes(program, Space::device)[static_cast<std::size_t>(backward - program.instructions.begin())]
                                           [static_cast<std::size_t>(Category::activations)];
}

TEST(Activations, EachChoiceTakesLessThanTheOneBefore) {
  for (const Family family : {Family::gpt2, Family::llama}) {
    RunConfig run{.family = family, .microbatches = 1, .layers = kLayers};
    const TrainerPlan none = plan_of(run, Recompute::none), selective = plan_of(run, Recompute::selective),
                      full = plan_of(run, Recompute::full);
    const auto arena = [](const TrainerPlan& plan) { return plan.memory.space(Space::device).arena_bytes; };
    EXPECT_GT(arena(none), arena(selective));
    EXPECT_GT(arena(selective), arena(full));

    // What is released is what the modules say they can make again, of every block.
    const UnitGraph block = small_model(run).activations({.sequences = 8, .length = 16}, 1).units[1];
    EXPECT_EQ(activations_before_backward(none) - activations_before_backward(selective),
              kLayers * block.bytes(Keep::recomputable));
    EXPECT_EQ(activations_before_backward(selective) - activations_before_backward(full),
              kLayers * block.bytes(Keep::saved));
  }
}

TEST(Activations, OnlyASelectiveRecomputeLeavesWhatIsSavedAlone) {
  for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
    const TrainerPlan plan = plan_of({.layers = kLayers}, recompute);
    const Program& program = plan.programs.front();
    const UnitGraph block =
        small_model({.layers = kLayers}).activations({.sequences = 8, .length = 16}, 1).units[1];
    std::map<Keep, int> written;
    std::set<std::pair<UnitId, int>> recomputed;
    for (const Instruction& use : program.instructions) {
      if (use.op != Opcode::use || use.pass != Pass::recompute) continue;
      recomputed.emplace(use.unit, use.microbatch);
      EXPECT_TRUE(use.find(Role::output) == nullptr);
      for (const Operand& operand : use.operands)
        if (operand.role == Role::value && writes(operand.access))
          ++written[block.values[operand.region.value].keep];
    }
    // Two microbatches. The embedding keeps nothing, and the head's backward follows its forward.
    EXPECT_EQ(recomputed.size(), 2u * kLayers);
    const auto count = [&](Keep keep) {
      return static_cast<int>(std::ranges::count_if(
          block.values, [&](const ValueSpec& value) { return value.keep == keep && value.bytes > 0; }));
    };
    EXPECT_EQ(written[Keep::recomputable], 2 * kLayers * count(Keep::recomputable));
    EXPECT_EQ(written[Keep::saved], recompute == Recompute::full ? 2 * kLayers * count(Keep::saved) : 0);
  }
}

// On the device, of all blocks but the one before the head, whose backward is near, no more than what goes
// down behind one forward and comes up ahead of one backward.
TEST(Activations, WhatWaitsOnTheHostTakesNoDeviceMemory) {
  for (const Family family : {Family::gpt2, Family::llama})
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      RunConfig run{.family = family, .stage = 1, .microbatches = 1, .layers = 8};
      const TrainerPlan kept = plan_of(run, recompute);
      run.offload.activations = Space::host;
      const TrainerPlan waiting = plan_of(run, recompute);
      const auto arena = [](const TrainerPlan& plan, Space space) {
        return plan.memory.space(space).arena_bytes;
      };
      // With full recompute the peak is elsewhere.
      if (recompute != Recompute::full) {
        EXPECT_LT(arena(waiting, Space::device), arena(kept, Space::device)) << name_of(recompute);
      }
      EXPECT_EQ(arena(kept, Space::host), 0);

      const IdVector<UnitGraph> units = small_model(run).activations({.sequences = 8, .length = 16}, 1).units;
      const UnitGraph& block = units[1];
      const std::int64_t each =
          block.output_bytes + (recompute == Recompute::full ? 0 : block.bytes(Keep::saved));
      EXPECT_GE(activations_before_backward(kept) - activations_before_backward(waiting), 6 * each)
          << name_of(recompute);
      EXPECT_EQ(waiting.memory.space(Space::host).live_peak_bytes, 8 * each) << name_of(recompute);
    }
}

TEST(Activations, TheDiskIsRefused) {
  RunConfig run{.layers = kLayers};
  run.offload.activations = Space::disk;
  EXPECT_THROW(plan_of(run, Recompute::none), UsageError);
  run.offload = {};
  run.unit_activations.assign(kUnits, {.kept = Space::disk});
  EXPECT_THROW(plan_of(run, Recompute::none), UsageError);
}

TEST(Activations, ChoicesMustBeOnePerUnit) {
  EXPECT_THROW(plan_of({.unit_activations = std::vector<ActivationChoice>(kUnits - 1), .layers = kLayers},
                       Recompute::none),
               UsageError);
}

}  // namespace
}  // namespace tessera::testing
