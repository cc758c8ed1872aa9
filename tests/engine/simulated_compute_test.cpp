// The simulator against real steps of a small GPT on two ranks: what each instruction takes in every other
// step predicts the steps between them. Alone on the machine: a busy one tells nothing, and the test says so.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "src/program/opcodes.h"
#include "tests/engine/matrix.h"
#include "tests/program/sanitized.h"

namespace tessera::testing {
namespace {

constexpr int kPairs = 11, kRounds = 4;
constexpr double kQuiet = 0.04;  // spread of a quiet machine's steps: their middle half over the median

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
  options.batch = {.sequences = 1, .length = 64};
  options.microbatches = 4;
  return options;
}

// What was seen of one mesh. Of an instruction, by pipeline rank and place in the program.
struct Seen {
  Layout layout;
  std::map<int, Program> programs = {};
  std::map<std::pair<int, InstructionId>, std::vector<double>> took_us = {};   // in even steps, on all ranks
  std::map<std::pair<int, InstructionId>, std::vector<double>> least_us = {};  // by even step, of the ranks
  std::vector<double> odd_us = {}, even_us = {};  // whole steps, on the slowest rank
};

Seen run(const Mesh& mesh) {
  const auto model = std::make_shared<const Model>(
      make_gpt2({.vocabulary = 1024, .context = 64, .layers = 6, .heads = 4, .channels = 256}, DType::fp32));
  const TrainerOptions options = options_on(mesh);
  Seen seen{.layout = Layout(model->units(), mesh.shard, mesh.replicate)};
  seen.odd_us.resize(kPairs);
  seen.even_us.resize(kPairs);
  std::mutex mutex;
  run_local(mesh.world(), {}, [&](Communicator world) {
    Trainer trainer(world, model, options);
    Engine& engine = trainer.engine();
    const int place = mesh.place(world.rank(), Axis::pipeline);
    for (int step = -2; step < 2 * kPairs; ++step) {  // two to warm up
      world.barrier();
      engine.set_tracing(true);
      trainer.train_step(1e-3, fetch_samples(mesh.data_rank(world.rank()), mesh.data_ranks(),
                                             options.microbatches, step + 2, 1024, options.batch));
      if (step < 0) continue;
      const std::scoped_lock lock(mutex);
      const auto pair = static_cast<std::size_t>(step / 2);
      double& slowest = (step % 2 == 0 ? seen.even_us : seen.odd_us)[pair];
      slowest = std::max(slowest, engine.timing().total_us);
      if (step % 2 != 0) continue;
      seen.programs.try_emplace(place, engine.program(0));
      for (const Span& span : engine.trace()) {
        const double us = span.end_us - span.start_us;
        seen.took_us[{place, span.instruction}].push_back(us);
        std::vector<double>& least = seen.least_us[{place, span.instruction}];
        if (least.size() <= pair) least.resize(pair + 1, us);
        least[pair] = std::min(least[pair], us);
      }
    }
  });
  return seen;
}

// What meets others spans the wait for them, too; whoever comes last does not wait. So: of a collective the
// least of its ranks in each step, of messages of one kind, and of the scalars, the least of all.
double predicted_us(const Mesh& mesh, const Seen& seen) {
  std::map<std::pair<Opcode, FlatId>, double> least_us;  // send and receive as one
  const auto kind = [](const Instruction& instruction) {
    return std::pair(is_message(instruction.op) ? Opcode::send : instruction.op, instruction.flat);
  };
  for (const auto& [at, took] : seen.took_us) {
    const auto [place, id] = at;
    double& least =
        least_us.try_emplace(kind(seen.programs.at(place).instructions[static_cast<std::size_t>(id)]), 1e9)
            .first->second;
    least = std::min(least, median_of(took));
  }
  std::vector<Program> programs;
  for (const auto& [place, program] : seen.programs) programs.push_back(program);
  const std::vector<int> program_of_rank = mesh.places(Axis::pipeline);
  const CostModel cost{.duration_us = [&](const Program& program, const Instruction& instruction) {
    const auto id = static_cast<InstructionId>(&instruction - program.instructions.data());
    if (is_message(instruction.op) || instruction.op == Opcode::reduce_scalars)
      return least_us.at(kind(instruction));
    const auto& from = communicates(instruction.op) ? seen.least_us : seen.took_us;
    return median_of(from.at({program.pipeline_rank, id}));
  }};
  const WorldTimeline simulated =
      simulate(WorldPrograms{.mesh = mesh, .programs = programs, .program_of_rank = program_of_rank},
               seen.layout, cost);
  return simulated.total_us;
}

class SimulatedCompute : public ::testing::TestWithParam<Mesh> {};

TEST_P(SimulatedCompute, AStepTakesWhatItWasPredictedTo) {
  if (kSanitized) GTEST_SKIP() << "instrumented kernels";
  for (int round = 0; round < kRounds; ++round) {
    const Seen seen = run(GetParam());
    const double predicted = predicted_us(GetParam(), seen), real = median_of(seen.odd_us);
    const double spread = std::max(spread_of(seen.odd_us), spread_of(seen.even_us));
    const double error = std::fabs(predicted - real) / real;
    std::printf("%s: predicted %.2f ms, real %.2f ms, error %.2f %%; the steps spread by %.1f %%\n",
                to_string(GetParam()).c_str(), predicted / 1e3, real / 1e3, error * 100, spread * 100);
    if (spread > kQuiet) continue;
    EXPECT_LE(error, 0.08);
    return;
  }
  GTEST_SKIP() << "the machine is too busy: steps differ among themselves by more than 4 %";
}

INSTANTIATE_TEST_SUITE_P(TwoRanks, SimulatedCompute, ::testing::Values(Mesh{.pipeline = 2}, Mesh{.shard = 2}),
                         [](const auto& made) { return made.param.pipeline > 1 ? "pipeline" : "shard"; });

}  // namespace
}  // namespace tessera::testing
