// What a step's marks say of it, on streams whose clocks the test sets.
#include "src/engine/step_trace.h"

#include <gtest/gtest.h>

#include <map>

#include "tessera/device.h"
#include "tessera/error.h"
#include "tessera/program.h"
#include "tessera/simulate.h"

namespace tessera {
namespace {

// A stream that only has a time.
class Clock final : public Stream {
 public:
  const std::string& name() const override { return name_; }
  void run(Task) override {}
  void wait(Event) override {}
  Event record() override { return {}; }
  void synchronize(Event) override {}
  bool done(Event) const noexcept override { return true; }

  double us = 0;

 private:
  const std::string name_ = "clock";
};

class ClocksDevice final : public Device {
 public:
  struct ByClock final : Marks {
    void begin(Stream&) override { times.clear(); }
    void mark(std::size_t slot, Stream& stream) override {
      EXPECT_TRUE(times.emplace(slot, dynamic_cast<Clock&>(stream).us).second) << "slot " << slot << " twice";
      EXPECT_LT(slot, slots);
    }
    double us(std::size_t slot) const override { return times.at(slot); }
    std::map<std::size_t, double> times;
    std::size_t slots = 0;
  };

  DeviceType type() const override { return DeviceType::cpu; }
  std::string name() const override { return "clocks"; }
  Arena make_arena(std::int64_t, bool, const ArenaSource&, std::int64_t) override { return {}; }
  Arena make_host_arena(std::int64_t) override { return {}; }
  std::unique_ptr<Stream> make_stream(const StreamOptions&) override { return nullptr; }
  std::unique_ptr<Stream> make_host_stream(const StreamOptions&) override { return nullptr; }
  std::unique_ptr<Marks> make_marks(std::size_t slots) override {
    ++made;
    auto marks = std::make_unique<ByClock>();
    marks->slots = slots;
    return marks;
  }
  FailureFlag failure() const override { return {}; }
  ByteCounters& counters() override { return counters_; }
  void copy(Stream&, void*, const void*, std::int64_t) override {}
  void fill(Stream&, void*, int, std::int64_t) override {}

  int made = 0;

 private:
  ByteCounters counters_;
};

Instruction on(Lane lane, Opcode op, std::vector<InstructionId> waits = {}) {
  Instruction instruction;
  instruction.lane = lane;
  instruction.op = op;
  instruction.waits = std::move(waits);
  if (op == Opcode::all_gather) instruction.channel = 0;
  if (op == Opcode::reduce_scatter) instruction.channel = 1;
  if (op == Opcode::reduce_scalars) instruction.channel = 2;
  return instruction;
}

Program program_of(std::vector<Instruction> instructions) {
  Program program;
  program.channels = {{Axis::shard, Lane::gather}, {Axis::shard, Lane::reduce}, {Axis::world, Lane::compute}};
  program.instructions = std::move(instructions);
  return program;
}

class StepTraces : public testing::Test {
 protected:
  // An instruction that runs on `stream` from `begin_us` to `end_us`.
  void run(InstructionId id, Clock& stream, double begin_us, double end_us) {
    const Instruction& instruction = programs_[0].instructions[id];
    if (instruction.lane == Lane::compute && !instruction.waits.empty()) trace_.waits(id, stream);
    stream.us = begin_us;
    trace_.begin(id, stream);
    stream.us = end_us;
    trace_.end(id, stream);
  }

  // 0 gather of 10 us; 1 use behind it; 2 use; 3 reduction behind 2; 4 its squares; 5 scalars behind these;
  // 6 update; 7 the parameters' gather behind it
  const std::vector<Program> programs_ = {
      program_of({on(Lane::gather, Opcode::all_gather), on(Lane::compute, Opcode::use, {0}),
                  on(Lane::compute, Opcode::use), on(Lane::reduce, Opcode::reduce_scatter, {2}),
                  on(Lane::reduce, Opcode::square_sum), on(Lane::compute, Opcode::reduce_scalars, {4}),
                  on(Lane::compute, Opcode::update), on(Lane::gather, Opcode::all_gather, {6})})};
  ClocksDevice device_;
  StepTrace trace_{device_, programs_, {.shard = 2}};
  Clock compute_, gather_, reduce_;
};

// A group of one exchanges nothing, whatever lane its copies and sums run on.
TEST_F(StepTraces, CountNoExchangeOfARankWithItself) {
  StepTrace alone(device_, programs_, {.pipeline = 2});
  alone.set(true);
  alone.start(programs_[0], compute_);
  alone.begin(0, gather_);
  gather_.us = 10;
  alone.end(0, gather_);
  alone.issued(compute_);
  alone.finish(1);
  EXPECT_EQ(alone.spans().size(), 1u);
  EXPECT_EQ(alone.timing().communication_us, 0);
}

TEST_F(StepTraces, AddUpWhatLanesDidAndTheComputeLaneWaited) {
  trace_.set(true);
  for (int step = 0; step < 2; ++step) {
    compute_.us = gather_.us = reduce_.us = 0;
    trace_.start(programs_[0], compute_);
    run(0, gather_, 0, 10);
    run(1, compute_, 10, 20);  // waited 10
    run(2, compute_, 20, 40);
    run(3, reduce_, 40, 55);
    run(4, reduce_, 55, 58);
    compute_.us = 41;          // what else the lane did
    run(5, compute_, 58, 60);  // waited 17
    run(6, compute_, 60, 70);
    run(7, gather_, 71, 90);
    trace_.issued(compute_);  // 20 to go
    trace_.finish(8);
    ASSERT_EQ(trace_.spans().size(), 8u);
    EXPECT_EQ(trace_.spans()[3].lane, Lane::reduce);
    EXPECT_EQ(trace_.spans()[3].start_us, 40);
    EXPECT_EQ(trace_.spans()[3].end_us, 55);
    EXPECT_EQ(trace_.timing().communication_us, 10 + 15 + 19);
    EXPECT_EQ(trace_.timing().exposed_us, 10 + 17 + 20);
    EXPECT_GT(trace_.timing().issue_us, 0);
    EXPECT_GT(trace_.timing().total_us, trace_.timing().issue_us);
    run(6, compute_, 90, 95);  // between steps: of none
  }
  EXPECT_EQ(device_.made, 1) << "marks are made once, before the first traced step";
}

TEST_F(StepTraces, EndWhereAStepIsSkipped) {
  trace_.set(true);
  trace_.start(programs_[0], compute_);
  run(0, gather_, 0, 10);
  run(1, compute_, 2, 20);
  run(2, compute_, 20, 40);
  run(3, reduce_, 30, 35);
  run(4, reduce_, 35, 36);
  run(5, compute_, 40, 41);
  trace_.issued(compute_);
  trace_.finish(6);
  EXPECT_EQ(trace_.spans().size(), 6u);
  EXPECT_EQ(trace_.timing().communication_us, 15);
  EXPECT_EQ(trace_.timing().exposed_us, 2) << "no lane was left to wait for";
}

TEST_F(StepTraces, OfStepsThatAreNotTracedSayNothing) {
  trace_.start(programs_[0], compute_);
  run(0, gather_, 0, 10);
  trace_.issued(compute_);
  trace_.finish(8);
  EXPECT_TRUE(trace_.spans().empty());
  EXPECT_EQ(trace_.timing().total_us, 0);
  EXPECT_EQ(device_.made, 0);
}

}  // namespace
}  // namespace tessera
