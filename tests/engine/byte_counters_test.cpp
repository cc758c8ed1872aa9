// The device's counters follow the bytes that hold something while steps run.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/engine/matrix.h"

namespace tessera::testing {
namespace {

bool touches(const Instruction& instruction, BufferId buffer) {
  return std::ranges::binary_search(instruction.reads, buffer) ||
         std::ranges::binary_search(instruction.writes, buffer);
}

struct Expected {
  CategoryBytes between_steps = {};
  CategoryBytes peak = {};
  std::int64_t peak_total = 0;
  std::vector<std::int64_t> totals;  // [instruction]
};

// From the programs alone, of which one runs: a buffer holds something from its lifetime's first access to
// the last.
Expected expected_of(const TrainerPlan& plan, const Program& program) {
  Expected expected;
  std::set<std::string> persistent;
  for (const Program& each : plan.programs)
    for (const Buffer& buffer : each.buffers)
      if (buffer.persistent && persistent.insert(buffer.name).second)
        expected.between_steps[static_cast<std::size_t>(buffer.category)] += buffer.bytes;
  expected.peak = expected.between_steps;
  std::vector<CategoryBytes> curve(program.instructions.size(), expected.between_steps);
  for (BufferId id = 0; id < static_cast<BufferId>(program.buffers.size()); ++id) {
    const Buffer& buffer = program.buffers[static_cast<std::size_t>(id)];
    for (const Lifetime& life : buffer.lifetimes) {
      InstructionId last = life.last;
      while (!touches(program.instructions[static_cast<std::size_t>(last)], id)) --last;
      for (InstructionId at = life.first; at <= last; ++at)
        curve[static_cast<std::size_t>(at)][static_cast<std::size_t>(buffer.category)] += buffer.bytes;
    }
  }
  for (const CategoryBytes& at : curve) {
    std::int64_t total = 0;
    for (std::size_t category = 0; category < kCategories; ++category) {
      expected.peak[category] = std::max(expected.peak[category], at[category]);
      total += at[category];
    }
    expected.totals.push_back(total);
    expected.peak_total = std::max(expected.peak_total, total);
  }
  return expected;
}

TEST(EngineByteCounters, FollowWhatHoldsSomething) {
  for (const bool strict : {true, false})
    for (const int stage : {0, 2, 3})
      for (const Recompute recompute : {Recompute::none, Recompute::full}) {
        const RunConfig run{
            .world = 2, .stage = stage, .strict_order = strict, .recompute = recompute, .microbatches = 2};
        SCOPED_TRACE(to_string(run));
        const auto model = std::make_shared<const Model>(small_model(run));
        const TrainerOptions options = trainer_options(run);
        const TrainerPlan plan = plan_trainer(*model, options);
        const Expected expected = expected_of(plan, plan.programs.front());
        const SpacePlan& device = plan.memory.space(Space::device);
        run_local(run.world, {}, [&](Communicator world) {
          const int rank = world.rank();
          Trainer trainer(world, model, options);
          const ByteCounters& bytes = trainer.engine().bytes();
          const auto between_steps = [&] {
            for (std::size_t category = 0; category < kCategories; ++category)
              EXPECT_EQ(bytes.current(static_cast<Category>(category)), expected.between_steps[category])
                  << name_of(static_cast<Category>(category));
          };
          between_steps();
          std::vector<std::int64_t> at_peak;
          trainer.engine().set_peak_observer([&] { at_peak.push_back(bytes.current_total()); });
          for (int step = 0; step < 3; ++step)
            trainer.train_step(1e-3, fetch_samples(rank, run.world, run.microbatches, step, model->vocabulary,
                                                   options.batch));
          between_steps();
          EXPECT_LE(bytes.peak_total(), device.arena_bytes);
          ASSERT_EQ(device.peak_program, 0);
          EXPECT_EQ(at_peak.size(), 3u);
          if (!strict) return;  // lanes that run ahead or behind hold other sums
          EXPECT_EQ(bytes.peak_total(), expected.peak_total);
          EXPECT_LE(bytes.peak_total(), device.live_peak_bytes);
          for (const std::int64_t held : at_peak)
            EXPECT_EQ(held, expected.totals[static_cast<std::size_t>(device.peak_instruction)]);
          for (std::size_t category = 0; category < kCategories; ++category)
            EXPECT_EQ(bytes.peak(static_cast<Category>(category)), expected.peak[category])
                << name_of(static_cast<Category>(category));
        });
      }
}

}  // namespace
}  // namespace tessera::testing
