// The simulator against real steps of a small GPT on two ranks: what the instructions take in every other
// step predicts the steps between them. Alone on the machine: a busy one tells nothing, and the test says so.
// Grains of a few milliseconds, as of real models: where threads take as long to wake as instructions to run,
// that is what a step on a machine with a core for each rank measures.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>

#include "src/program/opcodes.h"
#include "tessera/simulate.h"
#include "tessera/world_programs.h"
#include "tests/engine/matrix.h"
#include "tests/engine/quiet.h"
#include "tests/program/sanitized.h"

namespace tessera::testing {
namespace {

constexpr int kPairs = 8, kRounds = 8;
constexpr double kQuiet = 0.15;  // spread of a quiet machine's steps: their middle half over the median

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double spread_of(std::vector<double> values) {
  std::ranges::sort(values);
  return (values[values.size() * 3 / 4] - values[values.size() / 4]) / values[values.size() / 2];
}

TrainerOptions options_on(const Mesh& mesh) {
  TrainerOptions options;
  options.engine.mesh = mesh;
  if (mesh.shard > 1) options.engine.strategy.placements = Placements::of_stage(3);
  options.engine.optimizer.options = AdamWOptions{};
  options.engine.optimizer.groups = {{.name = "decay"}, {.name = "no_decay"}};
  options.batch = {.sequences = 1, .length = 128};
  options.microbatches = 2;
  return options;
}

using Durations = std::vector<IdVector<double>>;  // microseconds, by rank and instruction

// What was seen of one mesh.
struct Seen {
  Layout layout;
  std::vector<Program> programs = {};             // by rank
  std::vector<Durations> took_us = {};            // by even step
  std::vector<double> odd_us = {}, even_us = {};  // whole steps, on the slowest rank
};

Seen run(const Mesh& mesh) {
  const auto model = std::make_shared<const Model>(
      make_gpt2({.vocabulary = 1024, .context = 128, .layers = 4, .heads = 4, .channels = 512}, DType::fp32));
  const TrainerOptions options = options_on(mesh);
  const auto ranks = static_cast<std::size_t>(mesh.world());
  Seen seen{.layout = Layout(model->units(), mesh.shard, mesh.replicate)};
  seen.programs.resize(ranks);
  seen.took_us.assign(kPairs, Durations(ranks));
  seen.odd_us.resize(kPairs);
  seen.even_us.resize(kPairs);
  std::mutex mutex;
  run_local(mesh.world(), {}, [&](Communicator world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    Trainer trainer(world, model, options);
    Engine& engine = trainer.engine();
    seen.programs[rank] = engine.program(0);
    for (int step = -2; step < 2 * kPairs; ++step) {  // two to warm up
      world.barrier();
      engine.set_tracing(true);
      trainer.train_step(1e-3, fetch_samples(mesh.data_rank(world.rank()), mesh.data_ranks(),
                                             options.microbatches, step + 2, 1024, options.batch));
      if (step < 0) continue;
      const auto pair = static_cast<std::size_t>(step / 2);
      const std::scoped_lock lock(mutex);
      double& slowest = (step % 2 == 0 ? seen.even_us : seen.odd_us)[pair];
      slowest = std::max(slowest, engine.timing().total_us);
      if (step % 2 != 0) continue;
      IdVector<double>& took = seen.took_us[pair][rank];
      took.resize(seen.programs[rank].instructions.size());
      for (const TraceSpan& span : engine.trace()) took[span.instruction] = span.end_us - span.start_us;
    }
  });
  return seen;
}

// What meets others spans the wait for them, too; whoever comes last does not wait. So: of a collective the
// least of its ranks, of messages of one kind, and of the scalars, the least of all.
double predicted_us(const Mesh& mesh, const Seen& seen, const Durations& took_us) {
  std::map<std::pair<Opcode, FlatId>, double> least_us;  // send and receive as one
  const auto kind = [](const Program& program, const Instruction& instruction) {
    return std::pair(is_message(instruction.op) ? Opcode::send : instruction.op,
                     program.flat_of(instruction));
  };
  for (std::size_t rank = 0; rank < seen.programs.size(); ++rank)
    for (std::size_t id = 0; id < took_us[rank].size(); ++id) {
      double& least =
          least_us.try_emplace(kind(seen.programs[rank], seen.programs[rank].instructions[id]), 1e9)
              .first->second;
      least = std::min(least, took_us[rank][id]);
    }
  std::vector<int> program_of_rank(seen.programs.size());
  std::iota(program_of_rank.begin(), program_of_rank.end(), 0);
  const CostModel cost{.duration_us = [&](const Program& program, const Instruction& instruction) {
    const auto id = static_cast<std::size_t>(&instruction - program.instructions.data());
    const auto rank = static_cast<std::size_t>(&program - seen.programs.data());
    if (is_message(instruction.op) || instruction.op == Opcode::reduce_scalars)
      return least_us.at(kind(program, instruction));
    if (!communicates(instruction.op)) return took_us.at(rank).at(id);
    double least = took_us[rank][id];
    if (mesh.shard > 1)
      for (const std::vector<double>& of_rank : took_us) least = std::min(least, of_rank[id]);
    return least;
  }};
  const WorldTimeline simulated =
      simulate(WorldPrograms{.mesh = mesh, .programs = seen.programs, .program_of_rank = program_of_rank},
               seen.layout, cost);
  return simulated.total_us;
}

class SimulatedCompute : public ::testing::TestWithParam<Mesh> {};

TEST_P(SimulatedCompute, AStepTakesWhatItWasPredictedTo) {
  if (kSanitized) GTEST_SKIP() << "instrumented kernels";
  for (int round = 0; round < kRounds; ++round) {
    const ProcessorTime time;
    const Seen seen = run(GetParam());
    std::vector<double> predictions;
    for (const Durations& took_us : seen.took_us)
      predictions.push_back(predicted_us(GetParam(), seen, took_us));
    const double predicted = median_of(predictions), real = median_of(seen.odd_us);
    const double spread = std::max(spread_of(seen.odd_us), spread_of(seen.even_us));
    const double error = std::fabs(predicted - real) / real;
    std::printf("%s: predicted %.2f ms, real %.2f ms, error %.2f %%; the steps spread by %.1f %%\n",
                to_string(GetParam()).c_str(), predicted / 1e3, real / 1e3, error * 100, spread * 100);
    if (spread > kQuiet || !time.was_quiet()) continue;
    if (round + 1 < kRounds && error > 0.08) continue;  // work beside it may have come and gone between steps
    EXPECT_LE(error, 0.08);
    return;
  }
  GTEST_SKIP()
      << "the machine is too busy: others had its cores, or steps differ among themselves by more than 15 %";
}

INSTANTIATE_TEST_SUITE_P(TwoRanks, SimulatedCompute, ::testing::Values(Mesh{.pipeline = 2}, Mesh{.shard = 2}),
                         [](const auto& made) { return made.param.pipeline > 1 ? "pipeline" : "shard"; });

}  // namespace
}  // namespace tessera::testing
