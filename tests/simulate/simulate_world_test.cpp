// Whole meshes simulated: bubbles by hand, folded against unfolded, time against rates.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>

#include "tessera/error.h"
#include "tessera/exposed.h"
#include "tessera/pipeline.h"
#include "tests/program/mesh_programs.h"
#include "tests/program/sanitized.h"
#include "tests/program/small_graph.h"
#include "tests/program/small_models.h"
#include "tests/program/whole_backwards.h"

namespace tessera {
namespace {

using testing::small_meshes;
using testing::WholeMesh;

StepSpec spec_of(int units, int stage, const Pipeline& pipeline, int microbatches) {
  StepSpec spec;
  spec.microbatches = microbatches;
  spec.strategy.placements = Placements::of_stage(stage);
  spec.strategy.pipeline = pipeline;
  spec.activations = testing::activations(units);
  return spec;
}

// Forward 1, backward 2, all else free.
CostModel free_messages() {
  return {.duration_us = [](const Program&, const Instruction& instruction) {
    return instruction.op != Opcode::use ? 0.0 : instruction.pass == Pass::backward ? 2.0 : 1.0;
  }};
}

TEST(SimulateWorld, OneForwardOneBackwardByHand) {
  // rank 0 | F0 | F1 |    |  B0   | F2 |    |  B1   |    |  B2   |
  // rank 1      | F0 |  B0   | F1 |  B1   | F2 |  B2   |
  //        0    1    2       4    5       7    8       10      12
  const WholeMesh made(testing::chain(2, 100), {.pipeline = 2}, spec_of(2, 0, {}, 3));
  const WorldTimeline world = made.simulated(free_messages());
  ASSERT_EQ(world.ranks.size(), 2u);
  const std::vector<std::vector<double>> starts = {{0, 1, 4, 6, 7, 10}, {1, 2, 4, 5, 7, 8}};
  for (std::size_t rank = 0; rank < 2; ++rank) {
    std::vector<double> uses;
    for (const TraceSpan& span : world.ranks[rank].timeline.spans)
      if (made.programs[rank].instructions[span.instruction].op == Opcode::use) uses.push_back(span.start_us);
    EXPECT_EQ(uses, starts[rank]) << rank;
    EXPECT_DOUBLE_EQ(world.ranks[rank].passes_us, 9);
  }
  EXPECT_DOUBLE_EQ(world.passes_span_us, 12);
  EXPECT_DOUBLE_EQ(world.bubble, 0.25);
  EXPECT_DOUBLE_EQ(world.utilisation, 0.75);
  EXPECT_DOUBLE_EQ(world.exposed_us, 0);
}

TEST(SimulateWorld, BubblesAreTheTextbooks) {
  for (const ScheduleRow& row : testing::schedules_of_whole_backwards())
    for (int pipeline : {2, 3, 4, 8})
      for (int chunks = row.chunks_of(1); chunks <= row.chunks_of(3); ++chunks)
        for (int groups : {1, 2, 4}) {
          const int microbatches = groups * pipeline;  // what the closed form of `interleaved` needs
          const int units = pipeline * chunks;
          const WholeMesh made(
              testing::chain(units, 100), {.pipeline = pipeline},
              spec_of(units, 0, {.schedule = row.schedule, .chunks = chunks, .cuts = {}}, microbatches));
          const double expected = (pipeline - 1.0) / (chunks * microbatches + pipeline - 1);
          EXPECT_NEAR(made.simulated(free_messages()).bubble, expected, 1e-12)
              << row.name << " of " << pipeline << " ranks, " << chunks << " chunks, " << microbatches
              << " microbatches";
        }
}

// Where forward, backward and weight gradients take 1 each, ranks of ZB-H1 wait (p − 1)(F + B − W), a third
// of what those of 1F1B do, and with 2p − 1 microbatches or more those of ZB-V half of that. The last unit,
// whose backward is whole, takes no time.
TEST(SimulateWorld, WeightGradientsFillTheBubble) {
  const auto takes = [](const Program& program, const Instruction& use) {
    if (use.op != Opcode::use) return 0.0;
    const std::string& part = program.units[use.unit].parts[use.part];
    const bool last = use.unit + 1 == program.units.count();
    return !last && (part == "down parameters" || part == "down") ? 1.0 : 0.0;
  };
  for (const int ranks : {2, 3, 4, 6})
    for (const int microbatches : {6, 8, 13}) {
      const auto bubble = [&](PipelineSchedule schedule) {
        Pipeline pipeline{.schedule = schedule, .chunks = row_of(schedule).chunks_of(1), .cuts = {}};
        const int chunks = ranks * pipeline.chunks;
        for (int chunk = 1; chunk < chunks; ++chunk) pipeline.cuts.push_back(chunk);
        StepSpec spec = spec_of(chunks + 1, 0, pipeline, microbatches);
        spec.activations = testing::small_graphs(chunks + 1);
        CostModel cost = free_messages();
        cost.duration_us = takes;
        return WholeMesh(testing::chain(chunks + 1, 100), {.pipeline = ranks}, spec).simulated(cost).bubble;
      };
      const double p = ranks - 1, passes = 3 * microbatches;
      EXPECT_NEAR(bubble(PipelineSchedule::one_forward_one_backward), 3 * p / (passes + 3 * p), 1e-12);
      EXPECT_NEAR(bubble(PipelineSchedule::zb_h1), p / (passes + p), 1e-12)
          << ranks << " ranks, " << microbatches << " microbatches";
      if (microbatches >= 2 * ranks - 1) {
        EXPECT_NEAR(bubble(PipelineSchedule::zb_v), p / (2 * passes + p), 1e-12)
            << ranks << " ranks, " << microbatches << " microbatches";
      }
    }
}

TEST(SimulateWorld, FewerMicrobatchesThanRanksToo) {
  for (const PipelineSchedule schedule :
       {PipelineSchedule::one_forward_one_backward, PipelineSchedule::gpipe})
    for (int microbatches : {1, 2, 3, 5, 7}) {
      const WholeMesh made(testing::chain(4, 100), {.pipeline = 4},
                           spec_of(4, 0, {.schedule = schedule, .cuts = {}}, microbatches));
      EXPECT_NEAR(made.simulated(free_messages()).bubble, 3.0 / (microbatches + 3), 1e-12) << microbatches;
    }
}

// A send that takes 0.5 where nothing hides it: forward and back once through two ranks.
TEST(SimulateWorld, AMessageBeginsWhenBothEndsAreThere) {
  const WholeMesh made(testing::chain(2, 100), {.pipeline = 2}, spec_of(2, 0, {}, 1));
  CostModel cost = free_messages();
  cost.duration_us = [compute = cost.duration_us](const Program& program, const Instruction& instruction) {
    const bool message = instruction.op == Opcode::send || instruction.op == Opcode::receive;
    return message ? 0.5 : compute(program, instruction);
  };
  const WorldTimeline world = made.simulated(cost);
  for (std::size_t rank = 0; rank < 2; ++rank)
    for (const TraceSpan& span : world.ranks[rank].timeline.spans) {
      const Lane lane = span.lane;
      if (lane == Lane::send_output || lane == Lane::receive_output) {
        EXPECT_DOUBLE_EQ(span.start_us, 1) << rank;
      }
      if (lane == Lane::send_gradient || lane == Lane::receive_gradient) {
        EXPECT_DOUBLE_EQ(span.start_us, 4.5) << rank;
      }
    }
  EXPECT_DOUBLE_EQ(world.passes_span_us, 7);
  for (const RankTimeline& rank : world.ranks) EXPECT_DOUBLE_EQ(rank.timeline.exposed_us, 1);
  EXPECT_DOUBLE_EQ(world.exposed_us, 1);
  const IdArray<double, kGroups> along = exposed_along_us(made.world(), world);
  EXPECT_DOUBLE_EQ(along[Axis::pipeline], 1);
  EXPECT_DOUBLE_EQ(along[Axis::shard], 0);
}

void expect_equal(const WorldTimeline& folded, const WorldTimeline& each, const Mesh& mesh) {
  ASSERT_EQ(static_cast<int>(each.ranks.size()), mesh.world());
  int told = 0;
  for (const RankTimeline& of : folded.ranks) {
    told += of.ranks;
    const RankTimeline& rank = each.ranks[static_cast<std::size_t>(of.rank)];
    ASSERT_EQ(rank.rank, of.rank);
    ASSERT_EQ(rank.timeline.spans.size(), of.timeline.spans.size());
    for (std::size_t k = 0; k < of.timeline.spans.size(); ++k) {
      ASSERT_EQ(rank.timeline.spans[k].start_us, of.timeline.spans[k].start_us);
      ASSERT_EQ(rank.timeline.spans[k].end_us, of.timeline.spans[k].end_us);
    }
    ASSERT_EQ(rank.timeline.exposed_us, of.timeline.exposed_us);
  }
  EXPECT_EQ(told, mesh.world());
  EXPECT_EQ(folded.total_us, each.total_us);
  EXPECT_EQ(folded.passes_span_us, each.passes_span_us);
  EXPECT_NEAR(folded.bubble, each.bubble, 1e-12);
  EXPECT_NEAR(folded.utilisation, each.utilisation, 1e-12);
  EXPECT_NEAR(folded.exposed_us, each.exposed_us, 1e-9 * each.total_us);
}

TEST(SimulateWorld, FoldedEqualsEveryRankByItself) {
  std::mt19937 random(5);
  int folds = 0, cells = 0;
  for (const Mesh& mesh : small_meshes())
    for (const ScheduleRow& row : testing::schedules_of_whole_backwards()) {
      if (mesh.pipeline == 1 && row.schedule != PipelineSchedule::one_forward_one_backward) continue;
      for (int draw = 0; draw < 3; ++draw) {
        Pipeline pipeline;
        if (mesh.pipeline > 1) pipeline = {.schedule = row.schedule, .chunks = row.chunks_of(2), .cuts = {}};
        StepSpec spec =
            spec_of(16, static_cast<int>(random() % 4), pipeline, 1 + static_cast<int>(random() % 5));
        spec.strategy.prefetch = static_cast<int>(random() % 3);
        spec.strategy.reduce = random() % 2 == 0 ? ReduceWhen::each : ReduceWhen::last;
        spec.strategy.recompute = random() % 2 == 0 ? Recompute::none : Recompute::full;
        const WholeMesh made(random() % 2 == 0 ? testing::tied_model(14) : testing::chain(16, 3000), mesh,
                             spec);
        CostModel cost{.flops_per_us = 1,
                       .memory_bytes_per_us = 5e3,
                       .cluster = {.ranks_per_node = static_cast<int>(random() % 5),
                                   .inside = {.alpha_us = 1, .bytes_per_us = 900},
                                   .between = {.alpha_us = 4, .bytes_per_us = 150},
                                   .algorithm = static_cast<CollectiveAlgorithm>(random() % 4)},
                       .issue_us = 0.25,
                       .compute_issues = random() % 2 == 0};
        for (int unit = 0; unit < 16; ++unit) cost.forward_flops.push_back(1 + random() % 40);
        const WorldTimeline folded = made.simulated(cost);
        expect_equal(folded, made.simulated(cost, Folding::each_rank), mesh);
        if (HasFatalFailure()) FAIL() << to_string(mesh) << " " << row.name;
        ++cells;
        folds += static_cast<int>(folded.ranks.size()) < mesh.world();
        if (cost.cluster.ranks_per_node == 0) {
          ASSERT_EQ(static_cast<int>(folded.ranks.size()), mesh.pipeline);
        }
      }
    }
  EXPECT_GT(cells, 100);
  EXPECT_GT(folds, 20);
}

// A mesh with one pipeline rank on one node is what the rank is by itself.
TEST(SimulateWorld, ARankInStepIsTheRankAlone) {
  const StepSpec spec = spec_of(6, 3, {}, 2);
  const WholeMesh made(testing::chain(6, 3000), {.replicate = 2, .shard = 2}, spec);
  const CostModel cost{.forward_flops = {1e6, 2e6, 3e6, 4e6, 5e6, 6e6}};
  const Timeline alone = simulate(made.programs[0], made.layout, made.mesh, cost);
  const WorldTimeline world = made.simulated(cost);
  ASSERT_EQ(world.ranks.size(), 1u);
  EXPECT_EQ(world.ranks[0].ranks, 4);
  EXPECT_EQ(world.total_us, alone.total_us);
  EXPECT_EQ(world.exposed_us, alone.exposed_us);
  EXPECT_GT(alone.exposed_us, 0);
  EXPECT_LE(alone.exposed_us, alone.idle_us() + 1e-9);
}

// Along the replicate axis a shard travels, of a tied flat between pipeline ranks a slice.
TEST(SimulateWorld, CostsFollowWhatTravels) {
  StepSpec spec = spec_of(4, 0, {}, 2);
  spec.strategy.reduce = ReduceWhen::last;  // sums in fp32 travel
  const WholeMesh made(testing::tied_model(2), {.pipeline = 2, .replicate = 2, .shard = 2}, spec);
  const CostModel cost{.cluster = {.inside = {.alpha_us = 0, .bytes_per_us = 1}, .between = {}}};
  std::set<Opcode> seen;
  for (const RankTimeline& rank : made.simulated(cost).ranks) {
    const Program& program = made.programs[rank.program];
    for (const TraceSpan& span : rank.timeline.spans) {
      const Instruction& instruction = program.instructions[span.instruction];
      if (program.flat_of(instruction) < 0 || instruction.channel < 0) continue;
      const Flat& flat = made.layout.flat(program.flat_of(instruction));
      const Axis axis = program.channels[instruction.channel].axis;
      const double expected = axis == Axis::pipeline    ? 4.0 * static_cast<double>(flat.slice_numel)
                              : axis == Axis::replicate ? 4.0 * static_cast<double>(flat.shard_numel) / 2
                                                        : 4.0 * static_cast<double>(flat.padded_numel) / 2;
      EXPECT_DOUBLE_EQ(span.end_us - span.start_us, expected) << describe(program, span.instruction);
      seen.insert(instruction.op);
    }
  }
  EXPECT_EQ(seen, (std::set{Opcode::all_gather, Opcode::reduce_scatter, Opcode::send, Opcode::receive}));
}

TEST(SimulateWorld, NothingGetsSlowerByFasterRates) {
  const WholeMesh made(testing::tied_model(6), {.pipeline = 2, .replicate = 2, .shard = 2},
                       spec_of(8, 3, {}, 4));
  const auto total = [&](double compute, double memory, double inside, double between) {
    return made
        .simulated({.flops_per_us = compute,
                    .memory_bytes_per_us = memory,
                    .cluster = {.ranks_per_node = 2,
                                .inside = {.alpha_us = 1, .bytes_per_us = inside},
                                .between = {.alpha_us = 2, .bytes_per_us = between}},
                    .forward_flops = std::vector<double>(8, 50.0)})
        .total_us;
  };
  double last = std::numeric_limits<double>::infinity();
  for (const double faster : {1.0, 1.5, 2.0, 4.0, 16.0, 256.0}) {
    const double base = total(faster, 1000 * faster, 500 * faster, 100 * faster);
    EXPECT_LT(base, last);
    last = base;
    EXPECT_LE(total(2 * faster, 1000 * faster, 500 * faster, 100 * faster), base);
    EXPECT_LE(total(faster, 2000 * faster, 500 * faster, 100 * faster), base);
    EXPECT_LE(total(faster, 1000 * faster, 1000 * faster, 100 * faster), base);
    EXPECT_LE(total(faster, 1000 * faster, 500 * faster, 200 * faster), base);
  }
}

// Folded, thousands of ranks cost what their pipeline ranks do.
TEST(SimulateWorld, SixteenThousandRanksTakeLessThanTwoSeconds) {
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const Mesh mesh{.pipeline = 8, .replicate = 16, .shard = 128};
  StepSpec spec = spec_of(96, 3, {.schedule = PipelineSchedule::interleaved, .chunks = 2, .cuts = {}}, 64);
  spec.strategy.reduce = ReduceWhen::last;
  const Clock::time_point begin = Clock::now();
  const WholeMesh made(testing::chain(96, 1 << 20), mesh, spec);
  const double built = seconds_since(begin);
  const Clock::time_point simulating = Clock::now();
  const WorldTimeline world =
      made.simulated({.cluster = {.ranks_per_node = 8, .algorithm = CollectiveAlgorithm::hierarchical},
                      .forward_flops = std::vector<double>(96, 1e8)});
  const double simulated = seconds_since(simulating);
  std::size_t instructions = 0;
  for (const Program& program : made.programs) instructions += program.instructions.size();
  std::cout << "16,384 ranks, " << instructions << " instructions of 8 programs: built and planned in "
            << built << " s, simulated in " << simulated << " s (target 0.5)\n";
  EXPECT_EQ(world.ranks.size(), 8u);
  EXPECT_LT(simulated, testing::kSanitized ? 60 : 2);
}

TEST(SimulateWorld, AHundredThousandRanksTakeLessThanTwoSeconds) {
  const Mesh mesh{.shard = 100'000};
  const WholeMesh made(testing::chain(4, 1 << 20), mesh, spec_of(4, 3, {}, 2));
  const std::clock_t start = std::clock();
  const WorldTimeline world = made.simulated({.cluster = {.ranks_per_node = 8}});
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, testing::kSanitized ? 60 : 2);
  ASSERT_EQ(world.ranks.size(), 1u);
  EXPECT_EQ(world.ranks[0].ranks, 100'000);
}

TEST(SimulateWorld, RefusesWhatDoesNotFit) {
  WholeMesh made(testing::chain(4, 100), {.pipeline = 2}, spec_of(4, 0, {}, 2));
  const auto refusal = [&](const CostModel& cost) -> std::string {
    try {
      made.simulated(cost);
    } catch (const UsageError& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_EQ(refusal({}), "");
  EXPECT_NE(refusal({.memory_bytes_per_us = 0}).find("memory_bytes_per_us is 0"), std::string::npos);
  EXPECT_NE(refusal({.wake_us = -1}).find("wake_us is -1"), std::string::npos);
  EXPECT_NE(refusal({.issue_us = -1}).find("issue_us is -1"), std::string::npos);
  EXPECT_NE(refusal({.cluster = {.ranks_per_node = -3}}).find("ranks_per_node is -3"), std::string::npos);
  std::ranges::fill(made.program_of_rank, 0);
  EXPECT_NE(refusal({}).find("rank 1 is pipeline rank 1, but its program is for 0"), std::string::npos);
  made.program_of_rank = {0};
  EXPECT_NE(refusal({}).find("program_of_rank names 1 ranks"), std::string::npos);
  made.program_of_rank = {0, 2};
  EXPECT_NE(refusal({}).find("program_of_rank[1] is 2; there are 2 programs"), std::string::npos);
  made.program_of_rank = {0, 1};
  Program spoilt = made.programs[1];
  std::erase_if(made.programs[1].instructions, [](const Instruction& i) { return i.op == Opcode::send; });
  for (Instruction& instruction : made.programs[1].instructions) instruction.waits.clear();
  EXPECT_NE(refusal({}).find("meets nothing on rank 1"), std::string::npos) << refusal({});

  // The first rank sends only when it has received, the last likewise: a circle.
  made.programs[1] = spoilt;
  for (Program& program : made.programs)
    for (Instruction& instruction : program.instructions) instruction.waits.clear();
  auto& first = made.programs[0].instructions;
  const auto send = std::ranges::find(first, Lane::send_output, &Instruction::lane);
  const auto receive = std::ranges::find(first, Lane::receive_gradient, &Instruction::lane);
  send->waits = {static_cast<InstructionId>(receive - first.begin())};
  auto& last = made.programs[1].instructions;
  const auto taken = std::ranges::find(last, Lane::receive_output, &Instruction::lane);
  const auto given = std::ranges::find(last, Lane::send_gradient, &Instruction::lane);
  given->waits = {static_cast<InstructionId>(taken - last.begin())};
  EXPECT_NE(refusal({}).find("wait for each other"), std::string::npos) << refusal({});
}

TEST(ChromeTrace, OfAWorldHasAProcessForEachPipelineRank) {
  const WholeMesh made(testing::chain(4, 100), {.pipeline = 2, .shard = 2}, spec_of(4, 3, {}, 2));
  const WorldTimeline world = made.simulated({});
  std::ostringstream out;
  write_chrome_trace(out, made.programs, world);
  std::set<int> processes;
  std::set<std::string> names;
  std::size_t bars = 0;
  const nlohmann::json trace = nlohmann::json::parse(out.str());
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    processes.insert(event.at("pid").get<int>());
    if (event.at("name") == "process_name") names.insert(event.at("args").at("name"));
    bars += event.at("ph") == "X";
  }
  EXPECT_EQ(processes, (std::set{0, 1}));
  EXPECT_EQ(names, (std::set<std::string>{"pipeline rank 0, rank 0", "pipeline rank 1, rank 2"}));
  EXPECT_EQ(bars, made.programs[0].instructions.size() + made.programs[1].instructions.size());
}

}  // namespace
}  // namespace tessera
