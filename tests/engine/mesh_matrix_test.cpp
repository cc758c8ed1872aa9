// Pipelines and hybrid sharding give the same bits: pipeline × replicate × shard of up to 8 ranks, stages,
// schedules, counts of microbatches.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "src/program/schedules.h"
#include "tests/engine/matrix.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kLayers = 6;  // and an embedding and a head: 8 units

RunConfig base() {
  return {.family = Family::llama,
          .reduce = ReduceWhen::last,
          .prefetch = 1,
          .microbatches = 4,
          .steps = 3,
          .poison = true,
          .layers = kLayers};
}

// What the run would be on ranks of one pipeline stage each, and with the plainest of everything else.
RunConfig unpiped(RunConfig run) {
  run.pipeline = 1;
  run.schedule = {};
  run.stage = 0;
  run.prefetch = 0;
  run.strict_order = true;
  run.resident_units = 0;
  run.recompute = Recompute::none;
  run.unit_activations = {};
  run.state_over_replicas = run.parameters_over_replicas = false;
  return run;
}

// One run of each cell is enough: cells that differ in pipeline alone share their reference.
const RunResult& reference(const RunConfig& run) { return known_run(unpiped(run)); }

struct Cell {
  Mesh mesh;
  int stage;
  PipelineSchedule schedule;
  int microbatches;
};

RunConfig run_of(const Cell& cell, int variant) {
  RunConfig run = base();
  run.pipeline = cell.mesh.pipeline;
  run.replicate = cell.mesh.replicate;
  run.world = cell.mesh.shard;
  run.stage = cell.stage;
  run.microbatches = cell.microbatches;
  if (run.pipeline > 1)
    run.schedule = {.schedule = cell.schedule,
                    .chunks = row_of(cell.schedule).chunks_of(run.pipeline <= 4 ? 2 : 1),
                    .cuts = {},
                    .gather_once = variant % 3 == 0};
  run.prefetch = variant % 3;
  run.recompute = variant % 4 == 1 ? Recompute::full : Recompute::none;
  run.resident_units = variant % 5 == 2 ? 3 : 0;
  run.state_over_replicas = cell.stage > 0 && variant % 2 == 0;
  run.parameters_over_replicas = cell.stage == 3 && run.state_over_replicas && variant % 4 == 0;
  run.strict_order = variant % 7 == 3;
  run.dtype = variant % 3 == 1 ? DType::bf16 : DType::fp32;
  return run;
}

std::size_t least_cells() { return sampled_each(2) == 1 ? 200 : 100; }

// At least so many cells out of all, so chosen that each two values of different factors meet in one.
std::vector<Cell> sample() {
  std::vector<Cell> all;
  for (int pipeline = 1; pipeline <= 8; ++pipeline)
    for (int replicate = 1; replicate <= 8; ++replicate)
      for (int shard = 1; shard <= 8; ++shard) {
        if (pipeline * replicate * shard > 8) continue;
        for (int stage = 0; stage <= 3; ++stage)
          for (const ScheduleRow& row : pipeline_schedules())
            for (int microbatches : {1, 3, 4, 8})
              if (pipeline > 1 ? pipeline * row.chunks_of(1) <= kLayers + 2
                               : row.schedule == PipelineSchedule::one_forward_one_backward)
                all.push_back({{.pipeline = pipeline, .replicate = replicate, .shard = shard},
                               stage,
                               row.schedule,
                               microbatches});
      }
  std::mt19937 random(11);
  std::shuffle(all.begin(), all.end(), random);
  std::set<std::tuple<int, int, int, int>> met;
  const auto add_pairs = [&](const Cell& cell) {
    const int values[] = {cell.mesh.pipeline * 100 + cell.mesh.replicate * 10 + cell.mesh.shard, cell.stage,
                          static_cast<int>(cell.schedule), cell.microbatches};
    bool fresh = false;
    for (int a = 0; a < 4; ++a)
      for (int b = a + 1; b < 4; ++b) fresh |= met.insert({a, values[a], b, values[b]}).second;
    return fresh;
  };
  std::vector<Cell> chosen, rest;
  for (const Cell& cell : all) (add_pairs(cell) ? chosen : rest).push_back(cell);
  while (chosen.size() < least_cells() && !rest.empty()) {
    chosen.push_back(rest.back());
    rest.pop_back();
  }
  return chosen;
}

class MeshMatrix : public ::testing::TestWithParam<int> {};
constexpr int kParts = 8;

TEST_P(MeshMatrix, PipelineAndScheduleChangeNoBit) {
  const std::vector<Cell> cells = sample();
  ASSERT_GE(cells.size(), least_cells());
  for (std::size_t k = static_cast<std::size_t>(GetParam()); k < cells.size(); k += kParts) {
    if (!is_sampled(static_cast<int>(k / kParts) + GetParam())) continue;
    const RunConfig run = run_of(cells[k], static_cast<int>(k));
    const RunResult result = run_training(run);
    const RunResult& expected = reference(run);
    ASSERT_TRUE(same_bits(result, expected)) << to_string(run);
    if (run.dtype != DType::fp32 || data_ranks(run) == 1) continue;
    // One rank that takes all samples itself adds them up in another order.
    RunConfig alone = run;
    alone.world = alone.replicate = 1;
    alone.microbatches = run.microbatches * data_ranks(run);
    EXPECT_LT(furthest(result.losses, reference(alone).losses), 1e-5) << to_string(run);
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, MeshMatrix, ::testing::Range(0, kParts));

TEST(TiedPipeline, AgreesWithOneRank) {
  for (int pipeline : {2, 3})
    for (int stage = 0; stage <= 3; ++stage)
      for (int replicate : {1, 2}) {
        RunConfig run = base();
        run.family = Family::gpt2;  // its head is the token embedding
        run.pipeline = pipeline;
        run.replicate = replicate;
        run.state_over_replicas = stage > 0;
        run.world = pipeline == 2 ? 2 : 1;
        run.stage = stage;
        run.microbatches = 3;
        const RunResult result = run_training(run);
        EXPECT_LT(furthest(result.losses, reference(run).losses), 1e-5) << to_string(run);
        EXPECT_LT(furthest(result.norms, reference(run).norms), 1e-5) << to_string(run);
      }
}

}  // namespace
}  // namespace tessera::testing
