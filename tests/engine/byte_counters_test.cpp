// The device's counters follow the bytes that hold something while steps run.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "src/program/schedules.h"
#include "tessera/device.h"
#include "tests/engine/matrix.h"

namespace tessera::testing {
namespace {

struct Expected {
  CategoryBytes between_steps = {};
  CategoryBytes peak = {};
  std::int64_t peak_total = 0;
  std::int64_t least_peak_total =
      0;  // without what messages read or write: their lanes begin and end when they do
  IdVector<std::int64_t> totals;  // [instruction]
};

bool is_message(const Instruction& instruction) {
  return instruction.op == Opcode::send || instruction.op == Opcode::receive;
}

bool messages_touch(const Program& program, BufferId buffer) {
  return std::ranges::any_of(program.instructions, [&](const Instruction& instruction) {
    return is_message(instruction) && instruction.touches(buffer);
  });
}

// Of a space, from the programs alone, of which one runs: a buffer holds something from its lifetime's first
// access to the last.
Expected expected_of(const TrainerPlan& plan, const Program& program, Space space) {
  Expected expected;
  std::set<std::string> persistent;
  for (const Program& each : plan.programs)
    for (const Buffer& buffer : each.buffers)
      if (buffer.space == space && buffer.persistent && persistent.insert(buffer.name).second)
        expected.between_steps[static_cast<std::size_t>(buffer.category)] += buffer.bytes;
  expected.peak = expected.between_steps;
  IdVector<CategoryBytes> curve(program.instructions.size(), expected.between_steps);
  IdVector<std::int64_t> in_messages(program.instructions.size());
  for (BufferId id = 0; id < program.buffers.count(); ++id) {
    const Buffer& buffer = program.buffers[id];
    if (buffer.space != space) continue;
    const bool sent = messages_touch(program, id);
    for (const Lifetime& life : buffer.lifetimes) {
      InstructionId last = life.last;
      while (!program.instructions[last].touches(id)) --last;
      InstructionId first = life.first;
      while (!program.instructions[first].touches(id)) ++first;
      for (InstructionId at = first; at <= last; ++at) {
        curve[at][static_cast<std::size_t>(buffer.category)] += buffer.bytes;
        if (sent) in_messages[at] += buffer.bytes;
      }
    }
  }
  for (const CategoryBytes& at : curve) {
    std::int64_t total = 0;
    for (std::size_t category = 0; category < kCategories; ++category) {
      expected.peak[category] = std::max(expected.peak[category], at[category]);
      total += at[category];
    }
    expected.least_peak_total =
        std::max(expected.least_peak_total, total - in_messages[expected.totals.size()]);
    expected.totals.push_back(total);
    expected.peak_total = std::max(expected.peak_total, total);
  }
  return expected;
}

constexpr std::array kAllSpaces = {Space::device, Space::host, Space::disk};

// Between steps, and at the peak of those that ran. That is exact where no message lane runs by itself, and
// the lanes keep the order of issue.
void expect_space(const RunConfig& run, const TrainerPlan& plan, Space space, const ByteCounters& bytes) {
  SCOPED_TRACE(name_of(space));
  const Expected expected = expected_of(plan, plan.programs.front(), space);
  const SpacePlan& planned = plan.memory.space(space);
  for (std::size_t category = 0; category < kCategories; ++category)
    EXPECT_EQ(bytes.current(static_cast<Category>(category)), expected.between_steps[category])
        << name_of(static_cast<Category>(category));
  EXPECT_LE(bytes.peak_total(), planned.arena_bytes);
  if (!run.strict_order) return;  // lanes that run ahead or behind hold other sums
  EXPECT_GE(bytes.peak_total(), expected.least_peak_total);
  for (const Category category :
       {Category::parameters, Category::gathered_parameters, Category::gradients, Category::optimizer_state})
    EXPECT_EQ(bytes.peak(category), expected.peak[static_cast<std::size_t>(category)]) << name_of(category);
  if (run.pipeline > 1) return;
  EXPECT_EQ(bytes.peak_total(), expected.peak_total);
  EXPECT_LE(bytes.peak_total(), planned.live_peak_bytes);
  for (std::size_t category = 0; category < kCategories; ++category)
    EXPECT_EQ(bytes.peak(static_cast<Category>(category)), expected.peak[category])
        << name_of(static_cast<Category>(category));
}

void expect_followed(const RunConfig& run) {
  SCOPED_TRACE(to_string(run));
  const auto model = std::make_shared<const Model>(small_model(run));
  const TrainerOptions options = trainer_options(run);
  const IdVector<TrainerPlan> plans = plan_pipeline(*model, options);
  run_local(ranks_of(run), {}, [&](Communicator world) {
    const int rank = world.rank();
    const TrainerPlan& plan = plans[options.engine.mesh.place(rank, Axis::pipeline)];
    const SpacePlan& device = plan.memory.space(Space::device);
    Trainer trainer(world, model, options);
    const ByteCounters& bytes = trainer.engine().bytes();
    std::vector<std::int64_t> at_peak;
    trainer.engine().set_peak_observer([&] { at_peak.push_back(bytes.current_total()); });
    for (int step = 0; step < 3; ++step)
      trainer.train_step(1e-3, fetch_samples(rank % data_ranks(run), data_ranks(run), run.microbatches, step,
                                             model->vocabulary, options.batch));
    ASSERT_EQ(device.peak_program, 0);
    EXPECT_EQ(at_peak.size(), 3u);
    for (const Space space : kAllSpaces) expect_space(run, plan, space, trainer.engine().bytes(space));
    if (!run.strict_order || run.pipeline > 1) return;
    const Expected expected = expected_of(plan, plan.programs.front(), Space::device);
    for (const std::int64_t held : at_peak) EXPECT_EQ(held, expected.totals[device.peak_instruction]);
  });
}

TEST(EngineByteCounters, FollowWhatHoldsSomething) {
  for (const bool strict : {true, false})
    for (const int stage : {0, 2, 3})
      for (const Recompute recompute : {Recompute::none, Recompute::full})
        expect_followed(
            {.world = 2, .stage = stage, .strict_order = strict, .recompute = recompute, .microbatches = 2});
}

TEST(EngineByteCounters, FollowEverySpace) {
  for (const bool strict : {true, false})
    for (const DType type : {DType::fp32, DType::bf16})
      for (const Offload& offload :
           {Offload{.states = Space::host}, Offload{.states = Space::disk, .states_on_device = 0.5},
            Offload{.states = Space::host, .parameters = Space::host},
            Offload{.states = Space::disk, .parameters = Space::disk}}) {
        RunConfig run{.world = 2, .stage = 3, .dtype = type, .strict_order = strict, .microbatches = 2};
        run.offload = offload;
        expect_followed(run);
      }
}

TEST(EngineByteCounters, FollowWhatEarlyUpdatesFree) {
  for (const int stage : {0, 2, 3})
    for (const Offload& offload : {Offload{}, Offload{.states = Space::host}, Offload{.states = Space::disk}})
      expect_followed({.world = 2,
                       .stage = stage,
                       .dtype = DType::bf16,
                       .strict_order = true,
                       .microbatches = 2,
                       .max_norm = 0,
                       .offload = offload,
                       .update = UpdateWhen::reduced});
}

TEST(EngineByteCounters, FollowWhatUpdatesOfTheNextStepHold) {
  for (const bool strict : {true, false})
    for (const int stage : {0, 2, 3})
      for (const Space states : {Space::host, Space::disk})
        expect_followed({.world = 2,
                         .stage = stage,
                         .dtype = DType::bf16,
                         .strict_order = strict,
                         .microbatches = 2,
                         .offload = {.states = states},
                         .update = UpdateWhen::next});
}

// By schedule, stage and whether in strict order: every pipeline rank against its own plan.
class PipelineByteCounters : public ::testing::TestWithParam<std::tuple<ScheduleRow, int, bool>> {};

TEST_P(PipelineByteCounters, FollowEachRanksPlan) {
  const auto& [row, stage, strict] = GetParam();
  expect_followed({.family = Family::llama,
                   .world = 2,
                   .pipeline = 2,
                   .schedule = {.schedule = row.schedule, .chunks = row.chunks_of(2), .cuts = {}},
                   .stage = stage,
                   .strict_order = strict,
                   .microbatches = 4});
}

INSTANTIATE_TEST_SUITE_P(Schedules, PipelineByteCounters,
                         ::testing::Combine(::testing::ValuesIn(pipeline_schedules().begin(),
                                                                pipeline_schedules().end()),
                                            ::testing::Range(0, 4), ::testing::Bool()),
                         [](const auto& made) {
                           return "schedule_" + std::string(std::get<0>(made.param).name) + "_stage_" +
                                  std::to_string(std::get<1>(made.param)) +
                                  (std::get<2>(made.param) ? "_strict" : "_lanes");
                         });

}  // namespace
}  // namespace tessera::testing
