#include "tessera/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tessera/error.h"
#include "tests/program/hand_made.h"
#include "tests/program/small_models.h"

namespace tessera {
namespace {

using testing::HandMade;

Layout two_flats() {
  return Layout({{"a", {{.name = "a.w", .shape = {64}}}}, {"b", {{.name = "b.w", .shape = {64}}}}}, 1);
}

// 10 µs a gather or reduction, 25 a use.
CostModel fixed_costs() {
  return {.duration_us = [](const Program&, const Instruction& instruction) {
    return instruction.op == Opcode::use ? 25.0 : 10.0;
  }};
}

//   gather   | g0 | g1 |
//   compute       |    use a    |    use b    |
//   reduce                                    | r |
// All are issued before the first use ends but the reduction.
TEST(Simulate, LanesAndWaitsByHand) {
  HandMade made;
  const BufferId buffer = made.persistent("x"), other = made.persistent("y");
  const InstructionId gather_a = made.gather(0, buffer, other), gather_b = made.gather(1, buffer, other);
  made.use(0, {}, {}, {gather_a});
  const InstructionId use_b = made.use(1, {}, {}, {gather_b});
  made.reduce(1, buffer, other, {use_b});
  const Timeline timeline = simulate(made.program(), two_flats(), {.shard = 2}, fixed_costs());
  const double expected[][2] = {{0, 10}, {10, 20}, {10, 35}, {35, 60}, {60, 70}};
  ASSERT_EQ(timeline.spans.size(), 5u);
  for (std::size_t k = 0; k < 5; ++k) {
    EXPECT_EQ(timeline.spans[k].instruction, static_cast<InstructionId>(k));
    EXPECT_DOUBLE_EQ(timeline.spans[k].start_us, expected[k][0]) << k;
    EXPECT_DOUBLE_EQ(timeline.spans[k].end_us, expected[k][1]) << k;
  }
  EXPECT_DOUBLE_EQ(timeline.total_us, 70);
  EXPECT_DOUBLE_EQ(timeline.compute_us, 50);
  EXPECT_DOUBLE_EQ(timeline.communication_us, 30);
  EXPECT_DOUBLE_EQ(timeline.exposed_us, 20);
  EXPECT_DOUBLE_EQ(timeline.hidden(), 1 - 20.0 / 30.0);
}

// None, selective and full, of a chain whose last unit recomputes nothing in any case.
TEST(Simulate, RecomputeTakesWhatItRepeats) {
  const std::vector<UnitSpec> units = testing::chain(3, 100);
  const Layout layout(units, 1);
  const ActivationSpec activations = testing::activations(3);
  const CostModel cost{.flops_per_us = 2,
                       .memory_bytes_per_us = 16,
                       .forward_flops = {100, 200, 300},
                       .recompute_flops = {70, 80, 90}};
  const auto passes_us = [&](Recompute recompute, const CostModel& by) {
    StepSpec spec{.strategy = {}, .activations = activations, .order = {}};
    spec.strategy.recompute = recompute;
    const Program program = build_step(layout, {}, spec);
    double sum = 0;
    for (const TraceSpan& span : simulate(program, layout, {}, by).spans)
      if (program.instructions[span.instruction].op == Opcode::use) sum += span.end_us - span.start_us;
    return sum;
  };
  const double plain = passes_us(Recompute::none, cost);
  EXPECT_DOUBLE_EQ(plain, 3 * 600 / 2.0);
  const auto made_bytes = static_cast<double>(activations.units[0].bytes(Keep::recomputable));
  EXPECT_DOUBLE_EQ(passes_us(Recompute::selective, cost), plain + 2 * 2 * made_bytes / 16);
  EXPECT_DOUBLE_EQ(passes_us(Recompute::full, cost), plain + (70 + 80) / 2.0);
  CostModel without = cost;
  without.recompute_flops.clear();
  EXPECT_DOUBLE_EQ(passes_us(Recompute::full, without), plain + (100 + 200) / 2.0);
  without.recompute_flops = {1};
  EXPECT_THROW(passes_us(Recompute::full, without), UsageError);
}

TEST(Simulate, HiddenIsAShare) {
  EXPECT_DOUBLE_EQ(Timeline{}.hidden(), 1);
  EXPECT_DOUBLE_EQ((Timeline{.communication_us = 10, .exposed_us = 10}.hidden()), 0);
  EXPECT_DOUBLE_EQ((Timeline{.communication_us = 10, .exposed_us = 30}.hidden()), 0);
  EXPECT_DOUBLE_EQ((Timeline{.communication_us = 10, .exposed_us = 0}.hidden()), 1);
}

Program chain_program(const std::vector<UnitSpec>& units, const Layout& layout, int prefetch, int stage = 3) {
  return build_step(layout, {.shard = layout.shards()},
                    {.strategy = {.placements = Placements::of_stage(stage), .prefetch = prefetch},
                     .activations = testing::activations(static_cast<int>(units.size())),
                     .order = {}});
}

// As the engine's rank without peers, whose thread runs all but moves; on a device, lanes are on their own.
TEST(Simulate, ARankAloneDoesOneThingAfterTheOther) {
  const std::vector<UnitSpec> units = testing::chain(4, 100);
  const Layout layout(units, 1);
  const Program program = chain_program(units, layout, 1, 1);
  CostModel cost = fixed_costs();
  const auto sum_of = [](const Timeline& timeline) {
    double sum = 0;
    for (const TraceSpan& span : timeline.spans) sum += span.end_us - span.start_us;
    return sum;
  };
  const Timeline alone = simulate(program, layout, {}, cost);
  EXPECT_DOUBLE_EQ(alone.total_us, sum_of(alone));
  EXPECT_DOUBLE_EQ(alone.idle_us(), 0);
  const auto in_other_lanes = [](const TraceSpan& span) { return span.lane != Lane::compute; };
  EXPECT_TRUE(std::ranges::any_of(alone.spans, in_other_lanes));
  EXPECT_DOUBLE_EQ(alone.communication_us, 0);
  cost.compute_issues = false;
  const Timeline on_device = simulate(program, layout, {}, cost);
  EXPECT_LT(on_device.total_us, sum_of(on_device));

  StepSpec spec{.strategy = {}, .activations = testing::activations(4), .order = {}};
  spec.strategy.offload.activations = Space::host;
  const Timeline moving = simulate(build_step(layout, {}, spec), layout, {}, fixed_costs());
  EXPECT_LT(moving.total_us, sum_of(moving)) << "moves go on beside it";
}

// The overlap that the executor is held to: 12 units, compute 25 ms and communication 10 ms each.
class Overlap : public ::testing::Test {
 protected:
  Timeline run(int prefetch, bool compute_issues = true, double wake_us = 0) const {
    const Program program = chain_program(units_, layout_, prefetch);
    const CostModel cost{.wake_us = wake_us,
                         .compute_issues = compute_issues,
                         .duration_us = [](const Program&, const Instruction& instruction) {
                           switch (instruction.op) {
                             case Opcode::use:
                               return 25e3;
                             case Opcode::all_gather:
                             case Opcode::reduce_scatter:
                               return 10e3;
                             default:
                               return 0.0;
                           }
                         }};
    return simulate(program, layout_, {.shard = 2}, cost);
  }
  std::vector<UnitSpec> units_ = testing::chain(12, 1000);
  Layout layout_{units_, 2};
};

TEST_F(Overlap, OnlyTheFirstGatherAndTheLastReductionShow) {
  const Timeline timeline = run(1);
  EXPECT_DOUBLE_EQ(timeline.compute_us, 24 * 25e3);
  EXPECT_LE(timeline.total_us, 1.02 * (timeline.compute_us + 10e3 + 10e3));
  EXPECT_GE(timeline.hidden(), 0.9);
}

TEST_F(Overlap, PrefetchingFurtherIsNoSlower) { EXPECT_LE(run(2).total_us, run(1).total_us); }

TEST_F(Overlap, WithoutPrefetchEveryGatherShows) {
  const Timeline timeline = run(0);
  // The last unit's parameters stay from its forward to its backward; the other gathers all delay a use.
  EXPECT_GE(timeline.exposed_us, 23 * 10e3);
}

// Without prefetch the 12 gathers of forward and 11 of backward (the last unit's parameters stay) show: each
// wakes its lane and then the compute lane, but that the first is issued at once. Some more at the step's
// end.
TEST_F(Overlap, AGatherThatShowsWakesTwoLanes) {
  const double more = run(0, true, 100).total_us - run(0).total_us;
  EXPECT_GE(more, 45 * 100);
  EXPECT_LE(more, 50 * 100);
  EXPECT_LE(run(1, true, 100).total_us - run(1).total_us, 10 * 100);
}

// Where the host runs ahead, a gather that has memory of its own need not be issued early to run early.
TEST_F(Overlap, OnADeviceOnlyWaitsHoldGathersBack) {
  EXPECT_LE(run(0, false).total_us, 1.02 * (24 * 25e3 + 20e3));
  EXPECT_LE(run(1, false).total_us, run(1).total_us);
}

// With the link and memory as they are, durations follow from bytes: one unit of 1,000 bf16 weights and 7
// biases on two ranks, which pads to 1,152 and so 576 a shard; rounded to 128 elements, 640.
TEST(Simulate, DefaultCostsFollowBytes) {
  const std::vector<UnitSpec> units = testing::chain(1, 1000);
  const Layout layout(units, 2);
  ASSERT_EQ(layout.flat(0).shard_numel, 640);
  const Program program = chain_program(units, layout, 1);
  const CostModel cost{.flops_per_us = 10,
                       .memory_bytes_per_us = 100,
                       .cluster = {.inside = {.alpha_us = 3, .bytes_per_us = 64}, .between = {}},
                       .issue_us = 0.5,
                       .forward_flops = {200}};
  const Timeline timeline = simulate(program, layout, {.shard = 2}, cost);
  for (const TraceSpan& span : timeline.spans) {
    const Instruction& instruction = program.instructions[span.instruction];
    double expected = 0;
    switch (instruction.op) {
      case Opcode::use:
        expected = instruction.pass == Pass::forward ? 20 : 40;
        break;
      case Opcode::all_gather:
      case Opcode::reduce_scatter:
        expected = 3 + 640 * 2 / 64.0;
        break;
      case Opcode::reduce_scalars:
        expected = 3 + program.scalars_numel * 8 / 64.0;
        break;
      case Opcode::update:  // reads sum, master and two moments; writes the last three and the parameter
        expected = 640 * (4 * 4 + 3 * 4 + 2) / 100.0;
        break;
      case Opcode::zero:  // of gaps
        break;
      case Opcode::accumulate:
      case Opcode::square_sum:
      case Opcode::send:
      case Opcode::receive:
      case Opcode::copy:
        FAIL() << "one microbatch needs no local sum, one pipeline rank no messages, the device no copies";
    }
    EXPECT_NEAR(span.end_us - span.start_us, expected + 0.5, 1e-9) << describe(program, span.instruction);
  }
}

// Where every rank updates everything, the update costs the whole flat; where a shard each, its share.
TEST(Simulate, AShardedUpdateIsFaster) {
  const std::vector<UnitSpec> units = testing::chain(1, 1 << 20);
  const Layout layout(units, 8);
  const auto update_us = [&](int stage) {
    const Program program = chain_program(units, layout, 1, stage);
    for (const TraceSpan& span : simulate(program, layout, {.shard = 8}, {}).spans)
      if (program.instructions[span.instruction].op == Opcode::update) return span.end_us - span.start_us;
    return 0.0;
  };
  EXPECT_GT(update_us(0), 0);
  for (int stage : {1, 2, 3}) EXPECT_NEAR(update_us(stage), update_us(0) / 8, 1e-6) << "stage " << stage;
}

TEST(Simulate, OneRankNeedsNoCommunication) {
  const std::vector<UnitSpec> units = testing::chain(2, 1000);
  const Layout layout(units, 1);
  const Timeline timeline =
      simulate(chain_program(units, layout, 1), layout, {}, {.forward_flops = {100, 100}});
  EXPECT_EQ(timeline.communication_us, 0);
  EXPECT_EQ(timeline.hidden(), 1);
}

TEST(Simulate, ArgumentsThatDoNotFit) {
  const std::vector<UnitSpec> units = testing::chain(2, 1000);
  const Layout layout(units, 1);
  const Program program = chain_program(units, layout, 1);
  EXPECT_THROW(simulate(program, Layout(testing::chain(3, 10), 1), {}, {}), UsageError);
  EXPECT_THROW(simulate(program, layout, {}, {.forward_flops = {1}}), UsageError);
  EXPECT_THROW(simulate(program, layout, {}, {.flops_per_us = 0}), UsageError);
  EXPECT_THROW(simulate(program, layout, {}, {.host_memory_bytes_per_us = 0}), UsageError);
  EXPECT_THROW(simulate(program, layout, {}, {.host_link_bytes_per_us = -1}), UsageError);
  EXPECT_THROW(simulate(program, layout, {}, {.disk_bytes_per_us = 0}), UsageError);
  EXPECT_THROW(simulate(program, layout, {}, {.issue_us = HUGE_VAL}), UsageError);
  EXPECT_THROW(simulate(program, layout, {}, {.forward_flops = {1, NAN}}), UsageError);
  EXPECT_THROW(simulate(program, layout, {}, {.recompute_flops = {1, -1}}), UsageError);
  EXPECT_THROW(simulate(program, layout, {}, {.part_flops = {{1}, {-1}}}), UsageError);
  EXPECT_THROW(simulate(program, layout, {}, {.part_flops = {{1}, {NAN}}}), UsageError);
}

TEST(ChromeTrace, ParsesAndNamesEveryBar) {
  HandMade made;
  made.program().units[0].name = "a \"quoted\"\\\n\xff name";  // must not spoil the file
  const BufferId buffer = made.persistent("x"), other = made.persistent("y");
  const InstructionId gather = made.gather(0, buffer, other);
  made.use(0, {}, {}, {gather});
  const Timeline timeline = simulate(made.program(), two_flats(), {.shard = 2}, fixed_costs());
  std::ostringstream out;
  write_chrome_trace(out, made.program(), timeline.spans, 3);
  const nlohmann::json trace = nlohmann::json::parse(out.str());
  std::map<int, std::string> lanes;
  std::string process;
  std::vector<nlohmann::json> bars;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    EXPECT_EQ(event.at("pid"), 3);
    if (event.at("name") == "thread_name") lanes[event.at("tid")] = event.at("args").at("name");
    if (event.at("name") == "process_name") process = event.at("args").at("name");
    if (event.at("ph") == "X") bars.push_back(event);
  }
  EXPECT_EQ(process, "rank 3");
  EXPECT_EQ(lanes, (std::map<int, std::string>{{0, "compute"}, {1, "gather"}}));
  ASSERT_EQ(bars.size(), 2u);
  EXPECT_EQ(bars[0].at("tid"), 1);
  EXPECT_EQ(bars[0].at("ts"), 0);
  EXPECT_EQ(bars[0].at("dur"), 10);
  EXPECT_EQ(bars[1].at("ts"), 10);
  EXPECT_TRUE(std::string(bars[1].at("name")).starts_with("#1 forward of a \"quoted\"\\\n"));
}

TEST(ChromeTrace, NoSpansIsStillATrace) {
  std::ostringstream out;
  write_chrome_trace(out, Program{}, {}, 0);
  EXPECT_EQ(nlohmann::json::parse(out.str()).at("traceEvents").size(), 1u);
}

}  // namespace
}  // namespace tessera
