// With delays for compute, a pipeline's bubble is that of theory. Alone on the machine: a busy one stretches
// sleeps.
#include <cstdio>
#include <mutex>
#include <thread>

#include "tessera/pipeline.h"
#include "tests/engine/pipeline_toy.h"
#include "tests/engine/quiet.h"
#include "tests/program/sanitized.h"
#include "tests/program/small_graph.h"
#include "tests/program/whole_backwards.h"

namespace tessera::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRanks = 4, kMicrobatches = 8;

// 1 − the passes' time over all ranks' time from the first pass's begin to the last one's end, at best of a
// few steps.
double measured_bubble(const Pipeline& pipeline) {
  using std::chrono::duration;
  const std::chrono::microseconds pass(16'000 / pipeline.chunks);  // forward; backward is two
  double best = 1;
  std::mutex mutex;
  Clock::time_point begin, end;
  run_local(kRanks, kBlocking, [&](Communicator world) {
    EngineOptions options = pipeline_options({.pipeline = kRanks}, kRanks * pipeline.chunks, kMicrobatches);
    options.strategy.pipeline = pipeline;
    Engine engine(world, chain(kRanks * pipeline.chunks), options);
    engine.initialize(toy_fill());
    for (int step = 0; step < 3; ++step) {
      if (world.rank() == 0) begin = Clock::time_point::max(), end = {};
      world.barrier();
      engine.begin(StepKind::train, kMicrobatches);
      Clock::time_point first = Clock::time_point::max();
      pipeline_uses(engine, {.step = step}, 0, [&](const Instruction& use) {
        first = std::min(first, Clock::now());
        std::this_thread::sleep_for(use.pass == Pass::forward ? pass : 2 * pass);
      });
      const Clock::time_point last = Clock::now();
      {
        const std::lock_guard lock(mutex);
        begin = std::min(begin, first);
        end = std::max(end, last);
      }
      world.barrier();
      const double span = duration<double>(end - begin).count();
      const double busy = duration<double>(pass).count() * 3 * pipeline.chunks * kMicrobatches;
      if (world.rank() == 0) best = std::min(best, 1 - busy / span);
      engine.step({.learning_rate = 0.01});
    }
  });
  return best;
}

TEST(PipelineTime, TheBubbleIsThatOfTheory) {
  for (const ScheduleRow& row : schedules_of_whole_backwards()) {
    const int chunks = row.several_chunks ? 2 : 1;
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

std::vector<UnitSpec> split_units() {
  std::vector<UnitSpec> units = chain(kRanks + 1);
  for (UnitSpec& unit : units) unit.parameters.push_back({.name = unit.name + ".other", .shape = {64}});
  return units;
}

// Forward, backward and weight gradients take the same time. The last unit, whose backward is whole, takes
// none and lies on the last rank with another.
double idle_time(PipelineSchedule schedule) {
  using std::chrono::duration;
  const std::chrono::microseconds pass(16'000);
  double best = std::numeric_limits<double>::infinity();
  std::mutex mutex;
  Clock::time_point begin, end;
  run_local(kRanks, kBlocking, [&](Communicator world) {
    EngineOptions options = toy_options(1, 0);
    options.mesh = {.pipeline = kRanks};
    options.strategy.pipeline = {.schedule = schedule, .cuts = {1, 2, 3}};
    options.programs = {
        {.kind = StepKind::train, .microbatches = kMicrobatches, .activations = small_graphs(kRanks + 1)}};
    Engine engine(world, split_units(), options);
    engine.initialize(toy_fill());
    for (int step = 0; step < 3; ++step) {
      if (world.rank() == 0) begin = Clock::time_point::max(), end = {};
      world.barrier();
      engine.begin(StepKind::train, kMicrobatches);
      const Clock::time_point first = Clock::now();
      for (const Instruction& use : engine.running().instructions) {
        if (use.op != Opcode::use) continue;
        UnitLease lease = engine.use(use.unit, use.pass);
        const std::string& part = engine.running().units[use.unit].parts[use.part];
        if (use.unit < kRanks && (part == "down" || part == "down parameters"))
          std::this_thread::sleep_for(pass);
        const ParameterId first_of_unit = engine.layout().first_parameter(use.unit);
        for (ParameterId id = first_of_unit; id < first_of_unit + 2; ++id)
          if (use.find(Role::gradient) != nullptr && use.operand(Role::gradient).region.parameter == id) {
            const TensorView gradient = lease.gradient(id);
            std::fill_n(static_cast<float*>(gradient.data), gradient.numel, 1.0f);
          }
        lease.end();
      }
      const Clock::time_point last = Clock::now();
      {
        const std::lock_guard lock(mutex);
        begin = std::min(begin, first);
        end = std::max(end, last);
      }
      world.barrier();
      if (world.rank() == 0)
        best = std::min(best, duration<double>(end - begin) / duration<double>(pass) - 3 * kMicrobatches);
      engine.step({.learning_rate = 0.01});
    }
  });
  return best;
}

TEST(PipelineTime, WeightGradientsFillIt) {
  for (const auto& [schedule, theory] :
       {std::pair(PipelineSchedule::one_forward_one_backward, 3.0 * (kRanks - 1)),
        std::pair(PipelineSchedule::zb_h1, 1.0 * (kRanks - 1))}) {
    double idle = std::numeric_limits<double>::infinity();
    int quiet = 0;
    // Of the step's time, 2 %.
    const double slack = 0.02 * (3 * kMicrobatches + theory);
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
