// With delays for compute, a pipeline's bubble is that of theory. Alone on the machine: a busy one stretches
// sleeps.
#include <cstdio>
#include <mutex>
#include <thread>

#include "tessera/pipeline.h"
#include "tessera/program.h"
#include "tests/engine/pipeline_toy.h"
#include "tests/engine/quiet.h"
#include "tests/program/sanitized.h"
#include "tests/program/small_graph.h"
#include "tests/program/whole_backwards.h"

namespace tessera::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRanks = 4, kMicrobatches = 8;

// The time in seconds from the first pass's begin to the last one's end over all ranks, at best of a few
// steps. `step(engine, number)` runs a step's passes and returns when the first of this rank began.
template <class Step>
double shortest_step(const std::vector<UnitSpec>& units, const EngineOptions& options, const Step& step) {
  double best = std::numeric_limits<double>::infinity();
  std::mutex mutex;
  Clock::time_point begin, end;
  run_local(kRanks, kBlocking, [&](Communicator world) {
    Engine engine(world, units, options);
    engine.initialize(toy_fill());
    for (int number = 0; number < 3; ++number) {
      if (world.rank() == 0) begin = Clock::time_point::max(), end = {};
      world.barrier();
      engine.begin(StepKind::train, kMicrobatches);
      const Clock::time_point first = step(engine, number);
      const Clock::time_point last = Clock::now();
      {
        const std::lock_guard lock(mutex);
        begin = std::min(begin, first);
        end = std::max(end, last);
      }
      world.barrier();
      if (world.rank() == 0) best = std::min(best, std::chrono::duration<double>(end - begin).count());
      (void)engine.step({.learning_rate = 0.01});
    }
  });
  return best;
}

// 1 − the passes' time over that of the shortest step.
double measured_bubble(const Pipeline& pipeline) {
  const std::chrono::microseconds pass(16'000);  // a chunk's forward; backward is two
  EngineOptions options = pipeline_options({.pipeline = kRanks}, kRanks * pipeline.chunks, kMicrobatches);
  options.strategy.pipeline = pipeline;
  const double span = shortest_step(chain(kRanks * pipeline.chunks), options, [&](Engine& engine, int step) {
    Clock::time_point first = Clock::time_point::max();
    pipeline_uses(engine, {.step = step}, 0, [&](const Instruction& use) {
      first = std::min(first, Clock::now());
      std::this_thread::sleep_for(use.pass == Pass::forward ? pass : 2 * pass);
    });
    return first;
  });
  return 1 - std::chrono::duration<double>(pass).count() * 3 * pipeline.chunks * kMicrobatches / span;
}

TEST(PipelineTime, TheBubbleIsThatOfTheory) {
  for (const ScheduleRow& row : schedules_of_whole_backwards()) {
    const int chunks = row.chunks_of(2);
    const double theory = (kRanks - 1.0) / (chunks * kMicrobatches + kRanks - 1.0);
    double bubble = 1;
    int quiet = 0;
    for (int attempt = 0; attempt < 8 && quiet < 4 && bubble > theory + 0.02; ++attempt) {
      const ProcessorTime time;
      bubble = std::min(bubble, measured_bubble({.schedule = row.schedule, .chunks = chunks, .cuts = {}}));
      quiet += time.was_quiet() ? 1 : 0;
    }
    std::printf("%s: bubble %.4f, theory %.4f\n", std::string(row.name).c_str(), bubble, theory);
    if (bubble > theory + 0.02 && quiet < 4) GTEST_SKIP() << "the machine is too busy to tell";
    EXPECT_LE(bubble, theory + (kSanitized ? 0.15 : 0.02)) << row.name;
    EXPECT_GE(bubble, theory - 0.005) << row.name;  // less would be no pipeline
  }
}

std::vector<UnitSpec> split_units(int count) {
  std::vector<UnitSpec> units = chain(count);
  for (UnitSpec& unit : units) unit.parameters.push_back({.name = unit.name + ".other", .shape = {64}});
  return units;
}

// The time in passes of all units of a rank in which a rank idles in the shortest step. Forward, backward and
// weight gradients take the same time. The last unit, whose backward is whole, takes none and lies in the
// last chunk with another.
double idle_time(PipelineSchedule schedule) {
  const int chunks_of_rank = row_of(schedule).chunks_of(1), chunks = kRanks * chunks_of_rank;
  const std::chrono::microseconds pass(16'000), all_units = chunks_of_rank * pass;
  EngineOptions options = toy_options(1, 0);
  options.mesh = {.pipeline = kRanks};
  options.strategy.pipeline = {.schedule = schedule, .chunks = chunks_of_rank, .cuts = {}};
  for (int chunk = 1; chunk < chunks; ++chunk) options.strategy.pipeline.cuts.push_back(chunk);
  options.programs = {
      {.kind = StepKind::train, .microbatches = kMicrobatches, .activations = small_graphs(chunks + 1)}};
  const double span = shortest_step(split_units(chunks + 1), options, [&](Engine& engine, int /*step*/) {
    const Clock::time_point first = Clock::now();
    for (const Instruction& use : engine.running().instructions) {
      if (use.op != Opcode::use) continue;
      UnitLease lease = engine.use(use.unit, use.pass);
      const std::string& part = engine.running().units[use.unit].parts[use.part];
      if (use.unit < chunks && (part == "down" || part == "down parameters"))
        std::this_thread::sleep_for(pass);
      const ParameterId first_of_unit = engine.layout().first_parameter(use.unit);
      for (ParameterId id = first_of_unit; id < first_of_unit + 2; ++id)
        if (use.find(Role::gradient) != nullptr && use.operand(Role::gradient).region.parameter == id) {
          const TensorView gradient = lease.gradient(id);
          std::fill_n(static_cast<float*>(gradient.data), gradient.numel, 1.0f);
        }
      lease.end();
    }
    return first;
  });
  return span / std::chrono::duration<double>(all_units).count() - 3 * kMicrobatches;
}

TEST(PipelineTime, WeightGradientsFillIt) {
  for (const auto& [schedule, theory] :
       {std::pair(PipelineSchedule::one_forward_one_backward, 3.0 * (kRanks - 1)),
        std::pair(PipelineSchedule::zb_h1, 1.0 * (kRanks - 1)),
        std::pair(PipelineSchedule::zb_v, 0.5 * (kRanks - 1))}) {
    double idle = std::numeric_limits<double>::infinity();
    int quiet = 0;
    const double slack = 0.02 * (3 * kMicrobatches + theory);  // 2 % of the step's time
    for (int attempt = 0; attempt < 8 && quiet < 4 && idle > theory + slack; ++attempt) {
      const ProcessorTime time;
      idle = std::min(idle, idle_time(schedule));
      quiet += time.was_quiet() ? 1 : 0;
    }
    std::printf("%s: idle for %.3f passes, theory %.1f\n", std::string(name_of(schedule)).c_str(), idle,
                theory);
    if (idle > theory + slack && quiet < 4) GTEST_SKIP() << "the machine is too busy to tell";
    EXPECT_LE(idle, theory + (kSanitized ? 4 : slack));
    EXPECT_GE(idle, theory - 0.2);
  }
}

}  // namespace
}  // namespace tessera::testing
