// Cuts and schedules as pure functions, and the programs made of them: proved for every small mesh, refused
// when spoilt.
#include "tessera/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <random>

#include "src/build/order.h"
#include "src/program/schedules.h"
#include "tessera/link.h"
#include "tests/program/mesh_programs.h"
#include "tests/program/sampled.h"
#include "tests/program/sanitized.h"
#include "tests/program/small_graph.h"
#include "tests/program/small_models.h"

namespace tessera::testing {
namespace {

std::string text(const std::vector<ChunkPass>& order) {
  std::string words;
  for (const ChunkPass& pass : order)
    words += (words.empty() ? "" : " ") +
             std::string(pass.pass == Pass::forward    ? "F"
                         : pass.pass == Pass::backward ? "B"
                                                       : "W") +
             std::to_string(pass.chunk) + "." + std::to_string(pass.microbatch);
  return words;
}

TEST(PipelineSchedule, IsFoundByItsName) {
  EXPECT_EQ(pipeline_schedule_names().size(), pipeline_schedules().size());
  for (const ScheduleRow& row : pipeline_schedules())
    EXPECT_EQ(pipeline_schedule_named(row.name), row.schedule) << row.name;
  EXPECT_EQ(pipeline_schedule_named("1F1B"), std::nullopt);
}

TEST(PipelineOrder, IsTheOneOfTheTextbooks) {
  using enum PipelineSchedule;
  EXPECT_EQ(text(pipeline_order(one_forward_one_backward, {2, 1, 3}, 0)), "F0.0 F0.1 B0.0 F0.2 B0.1 B0.2");
  EXPECT_EQ(text(pipeline_order(one_forward_one_backward, {2, 1, 3}, 1)), "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2");
  EXPECT_EQ(text(pipeline_order(gpipe, {2, 1, 2}, 0)), "F0.0 F0.1 B0.0 B0.1");
  EXPECT_EQ(text(pipeline_order(looped, {2, 2, 2}, 1)), "F1.0 F1.1 F3.0 F3.1 B3.0 B3.1 B1.0 B1.1");
  // Rank s leaves the weight gradients of s microbatches for later.
  EXPECT_EQ(text(pipeline_order(zb_h1, {2, 1, 3}, 0)), "F0.0 F0.1 B0.0 W0.0 F0.2 B0.1 W0.1 B0.2 W0.2");
  EXPECT_EQ(text(pipeline_order(zb_h1, {2, 1, 3}, 1)), "F1.0 B1.0 F1.1 B1.1 W1.0 F1.2 B1.2 W1.1 W1.2");
  // The second and the third of four chunks are on rank 1.
  EXPECT_EQ(
      text(pipeline_order(zb_v, {2, 2, 4}, 0)),
      "F0.0 F0.1 F0.2 F3.0 B3.0 W3.0 F3.1 B3.1 W3.1 F0.3 B0.0 W0.0 F3.2 B3.2 W3.2 B0.1 W0.1 F3.3 B3.3 W3.3 "
      "B0.2 W0.2 B0.3 W0.3");
  EXPECT_EQ(
      text(pipeline_order(zb_v, {2, 2, 4}, 1)),
      "F1.0 F2.0 F1.1 F2.1 B2.0 W2.0 F1.2 B1.0 W1.0 F2.2 B2.1 W2.1 F1.3 B1.1 W1.1 F2.3 B2.2 W2.2 B1.2 B2.3 "
      "B1.3 W1.2 W2.3 W1.3");
  // Megatron-LM's for two ranks, two chunks each, four microbatches.
  EXPECT_EQ(text(pipeline_order(interleaved, {2, 2, 4}, 1)),
            "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3");
}

TEST(PipelineOrder, RunsEveryPassOnceAndBackwardBehindForward) {
  for (const ScheduleRow& row : pipeline_schedules())
    for (int ranks = 1; ranks <= 5; ++ranks)
      for (int chunks = row.chunks_of(1); chunks <= row.chunks_of(3); ++chunks)
        for (int microbatches = 1; microbatches <= 9; ++microbatches)
          for (int rank = 0; rank < ranks; ++rank) {
            std::map<std::pair<int, Pass>, int> next;  // by chunk: the microbatch that comes next
            for (const ChunkPass& pass : pipeline_order(row.schedule, {ranks, chunks, microbatches}, rank)) {
              ASSERT_EQ(row.rank_of(pass.chunk, ranks), rank);
              ASSERT_EQ((next[{pass.chunk, pass.pass}]++), pass.microbatch) << row.name;
              if (pass.pass == Pass::backward) {
                ASSERT_LT(pass.microbatch, (next[{pass.chunk, Pass::forward}])) << row.name;
              }
              if (pass.pass == Pass::weight_gradient) {
                ASSERT_LT(pass.microbatch, (next[{pass.chunk, Pass::backward}])) << row.name;
              }
            }
            ASSERT_EQ(next.size(), (row.splits_backward ? 3u : 2u) * static_cast<unsigned>(chunks));
            for (const auto& [key, count] : next) ASSERT_EQ(count, microbatches);
          }
}

TEST(PipelineOrder, OneForwardOneBackwardHoldsAsManyMicrobatchesAsRanksBehind) {
  for (int ranks = 1; ranks <= 6; ++ranks)
    for (int rank = 0; rank < ranks; ++rank) {
      int held = 0, most = 0;
      for (const ChunkPass& pass :
           pipeline_order(PipelineSchedule::one_forward_one_backward, {ranks, 1, 12}, rank)) {
        held += pass.pass == Pass::forward ? 1 : -1;
        most = std::max(most, held);
      }
      EXPECT_EQ(most, ranks - rank);
    }
}

// What a microbatch needs is held from its forward to its weight gradients.
TEST(PipelineOrder, ZeroBubbleHoldsAtMostAsManyMicrobatchesAsRanks) {
  for (int ranks = 1; ranks <= 6; ++ranks)
    for (int rank = 0; rank < ranks; ++rank) {
      int held = 0, most = 0;
      for (const ChunkPass& pass : pipeline_order(PipelineSchedule::zb_h1, {ranks, 1, 12}, rank)) {
        held += pass.pass == Pass::forward ? 1 : pass.pass == Pass::weight_gradient ? -1 : 0;
        most = std::max(most, held);
      }
      EXPECT_EQ(most, ranks) << "rank " << rank;
    }
}

// They are microbatches of a chunk, which is half of a rank's units. Few are held like many, as far as there
// are any.
TEST(PipelineOrder, ZeroBubbleVHoldsAtMostTwoChunksMicrobatchesForEachRank) {
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (int microbatches : {1, 2, 5, 40})
      for (int rank = 0; rank < ranks; ++rank) {
        int held = 0, most = 0;
        for (const ChunkPass& pass : pipeline_order(PipelineSchedule::zb_v, {ranks, 2, microbatches}, rank)) {
          held += pass.pass == Pass::forward ? 1 : pass.pass == Pass::weight_gradient ? -1 : 0;
          most = std::max(most, held);
        }
        EXPECT_LE(most, 2 * std::min(ranks, microbatches)) << "rank " << rank << " of " << ranks;
        if (microbatches == 40) {
          EXPECT_EQ(most, 2 * ranks) << "rank " << rank;
        }
      }
}

// PassTimes throws for one.
TEST(PipelineOrder, HasNoCycle) {
  for (const ScheduleRow& row : pipeline_schedules()) {
    for (int ranks = 2; ranks <= 9; ++ranks)
      for (int microbatches = 1; microbatches <= 2 * ranks + 3; ++microbatches)
        PassTimes(row.schedule, {ranks, row.chunks_of(2), microbatches}, StepKind::train);
    for (int ranks : {16, 33, 64})
      for (int microbatches : {1, ranks - 1, ranks + 1, 2 * ranks + 1})
        PassTimes(row.schedule, {ranks, row.chunks_of(2), microbatches}, StepKind::train);
  }
}

// Passes of zb_v take 1 each here: rank s begins at s, and with 2p − 1 microbatches or more waits no more.
TEST(PipelineOrder, ZeroBubbleVWaitsForTheFirstInputOnly) {
  for (int ranks = 2; ranks <= 8; ++ranks)
    for (int microbatches : {2 * ranks - 1, 2 * ranks, 3 * ranks + 1, 50}) {
      const PassTimes times(PipelineSchedule::zb_v, {ranks, 2, microbatches}, StepKind::train);
      int end = 0;
      for (int chunk = 0; chunk < 2 * ranks; ++chunk)
        for (const int start : times.starts(chunk)) end = std::max(end, start + 1);
      EXPECT_EQ(end, 6 * microbatches + ranks - 1) << ranks << " ranks, " << microbatches << " microbatches";
    }
}

TEST(PipelineOrder, IsMadeQuickly) {
  const auto begin = std::chrono::steady_clock::now();
  for (const ScheduleRow& row : pipeline_schedules())
    EXPECT_GE(pipeline_order(row.schedule, {64, row.chunks_of(2), 4096}, 31).size(), 8192u);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), 0.1 * static_cast<double>(pipeline_schedules().size()) * (kSanitized ? 20 : 1));
}

TEST(Partition, CutsByCountOrByHand) {
  const Partition even(10, 2, {.schedule = PipelineSchedule::interleaved, .chunks = 2, .cuts = {}});
  ASSERT_EQ(even.chunks().size(), 4u);
  EXPECT_EQ(even.chunk(1).first, 2);
  EXPECT_EQ(even.chunk(3).first, 7);
  EXPECT_EQ(even.chunk(3).end, 10);
  EXPECT_EQ(even.rank_of(9), 1);
  EXPECT_EQ(even.rank_of(5), 0);
  const Partition down_and_up(7, 3, {.schedule = PipelineSchedule::zb_v, .chunks = 2, .cuts = {}});
  const int ranks[] = {0, 1, 2, 2, 1, 0};
  for (int chunk = 0; chunk < 6; ++chunk) EXPECT_EQ(down_and_up.chunk(chunk).rank, ranks[chunk]) << chunk;
  const Partition by_hand(5, 3, {.cuts = {1, 4}});
  EXPECT_EQ(by_hand.chunk(1).first, 1);
  EXPECT_EQ(by_hand.chunk(2).first, 4);
}

std::string refusal(int units, int pipeline, const Pipeline& options) {
  try {
    const Partition made(units, pipeline, options);
  } catch (const UsageError& error) {
    return error.what();
  }
  return {};
}

TEST(Partition, RefusesWhatCannotBeCut) {
  EXPECT_NE(refusal(3, 4, {}).find("it has 3 units"), std::string::npos);
  EXPECT_NE(refusal(8, 2, {.cuts = {3, 5}}).find("2 chunks need 1"), std::string::npos);
  EXPECT_NE(refusal(8, 3, {.cuts = {5, 5}}).find("must ascend"), std::string::npos);
  EXPECT_NE(refusal(8, 2, {.cuts = {8}}).find("within 1 to 7"), std::string::npos);
  EXPECT_NE(refusal(8, 2, {.chunks = 2, .cuts = {}}).find("1f1b has one chunk"), std::string::npos);
  for (const int chunks : {1, 3})
    EXPECT_NE(refusal(8, 2, {.schedule = PipelineSchedule::zb_v, .chunks = chunks, .cuts = {}})
                  .find("chunks is " + std::to_string(chunks) + ", but schedule zb_v has 2 on each rank"),
              std::string::npos);
  EXPECT_NE(refusal(8, 1, {.schedule = PipelineSchedule::gpipe, .cuts = {}}).find("mesh.pipeline is 1"),
            std::string::npos);
}

// All ways to cut `cost` into `chunks`, the dearest chunk of the best.
double best_of_all(const std::vector<double>& cost, int chunks, std::size_t first = 0) {
  double sum = 0, best = std::numeric_limits<double>::infinity();
  if (chunks == 1) {
    for (std::size_t unit = first; unit < cost.size(); ++unit) sum += cost[unit];
    return sum;
  }
  for (std::size_t end = first + 1; end < cost.size(); ++end) {
    sum += cost[end - 1];
    best = std::min(best, std::max(sum, best_of_all(cost, chunks - 1, end)));
  }
  return best;
}

TEST(BalancedCuts, AreAsGoodAsTheBestOfAll) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> cost(2 + random() % 8);
    for (double& one : cost) one = 1 + random() % 20;
    const int chunks = 1 + static_cast<int>(random() % cost.size());
    const std::vector<int> cuts = balanced_cuts(cost, chunks);
    ASSERT_EQ(static_cast<int>(cuts.size()), chunks - 1);
    double dearest = 0, sum = 0;
    for (std::size_t unit = 0; unit < cost.size(); ++unit) {
      if (std::ranges::find(cuts, static_cast<int>(unit)) != cuts.end()) sum = 0;
      dearest = std::max(dearest, sum += cost[unit]);
    }
    ASSERT_EQ(dearest, best_of_all(cost, chunks)) << round;
  }
}

TEST(BalancedCuts, KeepWithinBytes) {
  const std::vector<double> cost = {1, 1, 1, 9}, bytes = {5, 5, 1, 1};
  EXPECT_EQ(balanced_cuts(cost, 2), (std::vector<int>{3}));
  EXPECT_EQ(balanced_cuts(cost, 2, bytes, 10), (std::vector<int>{2}));
  EXPECT_TRUE(balanced_cuts(cost, 2, bytes, 6).empty());
}

// ---- programs of whole meshes ----

StepSpec spec_of(int units, int stage, PipelineSchedule schedule, int chunks, int microbatches) {
  StepSpec spec;
  spec.microbatches = microbatches;
  spec.strategy.placements = Placements::of_stage(stage);
  spec.strategy.pipeline = {.schedule = schedule, .chunks = chunks, .cuts = {}};
  spec.activations = splits_backward(schedule) ? small_graphs(units) : activations(units);
  return spec;
}

TEST(PipelinePrograms, AreProvedOnEveryMeshOfUpToEightRanks) {
  const std::vector<UnitSpec> tied = tied_model(14), untied = chain(16, 100);
  const int each = sampled_each(3);
  int variants = 0;
  for (const Mesh& mesh : small_meshes())
    for (int stage = 0; stage <= 3; ++stage)
      for (const ScheduleRow& row : pipeline_schedules()) {
        if (mesh.pipeline == 1 && row.schedule != PipelineSchedule::one_forward_one_backward) continue;
        for (int microbatches : {1, 3, 4, 8}) {
          const int variant = variants++;
          if (variant * 7 % 11 % each != 0) continue;  // each remainder by 2, 3, 5 and 7 is met
          StepSpec spec = spec_of(16, stage, row.schedule, row.chunks_of(2), microbatches);
          spec.strategy.prefetch = variant % 3;
          spec.strategy.recompute = variant % 2 == 0 ? Recompute::none : Recompute::full;
          spec.strategy.reduce = variant % 5 < 2 ? ReduceWhen::each : ReduceWhen::last;
          spec.strategy.resident_units = stage == 3 && variant % 4 == 0 ? 5 : 0;
          spec.strategy.state_over_replicas = stage > 0 && variant % 7 < 3;
          spec.strategy.parameters_over_replicas =
              spec.strategy.state_over_replicas && stage == 3 && variant % 2 == 0;
          spec.strategy.pipeline.gather_once = mesh.pipeline > 1 && variant % 3 == 0;
          const WholeMesh made(variant % 2 == 0 && !row.splits_backward ? tied : untied, mesh, spec);
          const VerifyReport report = made.verified_in_order();
          ASSERT_TRUE(report.ok()) << to_string(mesh) << " stage " << stage << " " << row.name << " "
                                   << microbatches << " microbatches, variant " << variant << "\n"
                                   << report.to_string();
          if (variant % 3 != 0) continue;  // fewer of what has less to go wrong
          spec.kind = StepKind::evaluate;
          ASSERT_TRUE(WholeMesh(untied, mesh, spec).verified_in_order().ok());
        }
      }
  EXPECT_GT(variants, 500);
}

TEST(PipelinePrograms, HoldAsManyMicrobatchesAsTheScheduleHasInFlight) {
  for (int rank = 0; rank < 4; ++rank) {
    const StepSpec spec = spec_of(8, 1, PipelineSchedule::one_forward_one_backward, 1, 12);
    const Layout layout(chain(8, 100), 1);
    const Program program = build_step(layout, {.pipeline = 4}, spec, rank);
    const auto saved = std::ranges::count_if(program.buffers, [&](const Buffer& buffer) {
      return buffer.role == BufferRole::value && buffer.index == UnitGraph::kSaved && buffer.unit == 2 * rank;
    });
    EXPECT_EQ(saved, 4 - rank);
  }
}

// A value that weight gradients read lives until they ran, one that only backward reads until that ran.
TEST(PipelinePrograms, KeepWhatWeightGradientsNeedUntilTheyRan) {
  const StepSpec spec = spec_of(8, 1, PipelineSchedule::zb_h1, 1, 12);
  const Layout layout(chain(8, 100), 1);
  for (int rank = 0; rank < 4; ++rank) {
    const Program program = build_step(layout, {.pipeline = 4}, spec, rank);
    const UnitId unit = 2 * rank;
    const auto buffers = [&](ValueId value) {
      return std::ranges::count_if(program.buffers, [&](const Buffer& buffer) {
        return buffer.role == BufferRole::value && buffer.index == value && buffer.unit == unit;
      });
    };
    EXPECT_EQ(buffers(kBentValue), 4);
    EXPECT_EQ(buffers(kUpValue), 4 - rank);
    // Weight gradients read what lies over it, and it has memory of its own.
    EXPECT_EQ(buffers(kBentGradient), rank + 1);
    int weight_gradients = 0, gradients = 0;
    for (const Instruction& of : program.instructions) {
      if (of.op != Opcode::use || of.unit != unit) continue;
      weight_gradients += of.pass == Pass::weight_gradient;
      if (of.find(Role::gradient) != nullptr) {
        ++gradients;
        EXPECT_EQ(of.pass, Pass::weight_gradient);
      }
    }
    EXPECT_EQ(weight_gradients, 2 * 12);
    EXPECT_EQ(gradients, 2 * 12);
  }
}

TEST(PipelinePrograms, RefuseToSplitWhatIsOnePart) {
  StepSpec spec = spec_of(8, 1, PipelineSchedule::zb_h1, 1, 4);
  spec.activations = activations(8);
  try {
    build_step(Layout(chain(8, 100), 1), {.pipeline = 4}, spec);
    ADD_FAILURE() << "not refused";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("pipeline.schedule zb_h1"), std::string::npos) << error.what();
  }
}

TEST(PipelinePrograms, KeepToTheFlatsAndUnitsOfTheirRank) {
  const Layout layout(chain(8, 100), 2);
  const StepSpec spec = spec_of(8, 2, PipelineSchedule::gpipe, 1, 2);
  const Program program = build_step(layout, {.pipeline = 4, .shard = 2}, spec, 2);
  for (FlatId flat = 0; flat < 8; ++flat)
    EXPECT_EQ(program.persistent(flat, BufferRole::parameter) >= 0, flat == 4 || flat == 5);
  for (const Instruction& instruction : program.instructions)
    EXPECT_TRUE(instruction.op != Opcode::use || instruction.unit == 4 || instruction.unit == 5);
}

// Of each flat one pipeline rank takes the squares, once and when nothing is added to its gradient any more;
// by an instruction of its own only where no reduction completes it.
TEST(PipelinePrograms, TakeTheSquaresOfCompleteGradients) {
  const std::vector<UnitSpec> tied = tied_model(6);
  for (const Mesh& mesh : small_meshes())
    for (int microbatches : {1, 3}) {
      if (mesh.pipeline > 4) continue;
      const WholeMesh made(tied, mesh,
                           spec_of(static_cast<int>(tied.size()), 2,
                                   PipelineSchedule::one_forward_one_backward, 1, microbatches));
      IdVector<int> taken(made.layout.flats().size()), alone(taken.size());
      for (const Program& program : made.programs) {
        IdVector<bool> complete(taken.size());
        for (const Instruction& of : program.instructions) {
          const FlatId flat = program.flat_of(of);
          if (flat < 0) continue;
          const bool adds = of.op == Opcode::reduce_scatter || of.op == Opcode::accumulate;
          EXPECT_FALSE(adds && complete[flat]) << to_string(mesh) << ", flat " << flat;
          if (of.find(Role::squares) == nullptr) continue;
          EXPECT_EQ(of.operand(Role::squares).buffer, program.scalars);
          EXPECT_EQ(of.operand(Role::squares).region, Region::sum_of(kAllParameters));
          complete[flat] = true;
          ++taken[flat];
          alone[flat] += of.op == Opcode::square_sum;
        }
      }
      const bool added = mesh.shard * mesh.replicate > 1 || microbatches > 1;
      for (FlatId flat = 0; flat < taken.count(); ++flat) {
        const bool exchanged = mesh.pipeline > 1 && flat == made.layout.place(0).flat;  // at the end
        const int once = made.layout.flat(flat).trainable;
        EXPECT_EQ(taken[flat], once) << to_string(mesh) << ", " << microbatches << ", flat " << flat;
        EXPECT_EQ(alone[flat], added && !exchanged ? 0 : once)
            << to_string(mesh) << ", " << microbatches << ", flat " << flat;
      }
    }
}

// Each microbatch crosses every boundary between ranks once as an output and once as a gradient. Where the
// chain turns, both chunks are on one rank.
TEST(PipelinePrograms, SendEachBoundaryOnce) {
  for (const ScheduleRow& row : pipeline_schedules())
    for (int microbatches : {1, 3, 8}) {
      const int chunks = row.chunks_of(2);
      const WholeMesh made(chain(8, 100), {.pipeline = 4}, spec_of(8, 0, row.schedule, chunks, microbatches));
      int sends = 0, receives = 0;
      for (const Program& program : made.programs)
        for (const Instruction& instruction : program.instructions) {
          sends += instruction.op == Opcode::send;
          receives += instruction.op == Opcode::receive;
        }
      const bool turns = row.rank_of(3, 4) == row.rank_of(4, 4);
      EXPECT_EQ(sends, 2 * microbatches * (4 * chunks - 1 - (turns ? 1 : 0))) << row.name;
      EXPECT_EQ(receives, sends);
    }
}

TEST(PipelinePrograms, RefuseChunksOfOneRankThatShareParametersOutOfTurn) {
  std::vector<UnitSpec> units = chain(4, 100);
  units[2].parameters.push_back(
      {.name = "again", .shape = {100}, .dtype = DType::bf16, .tied_to = "block.0.weight"});
  const Layout layout(units, 1);
  EXPECT_THROW(build_step(layout, {.pipeline = 2}, spec_of(4, 0, PipelineSchedule::looped, 2, 2), 0),
               UnsupportedError);
}

// The gradients of a microbatch come to the last chunk long before they come to the first.
TEST(PipelinePrograms, HoldTiedParametersInAVForOneMicrobatchOnly) {
  std::vector<UnitSpec> units = chain(4, 100);
  units[3].parameters[0].tied_to = "block.0.weight";
  const WholeMesh one(units, {.pipeline = 2}, spec_of(4, 0, PipelineSchedule::zb_v, 2, 1));
  EXPECT_TRUE(one.verified_in_order().ok()) << one.verified_in_order().to_string();
  EXPECT_TRUE(one.proved().ok()) << one.proved().to_string();
  try {
    build_step(one.layout, one.mesh, spec_of(4, 0, PipelineSchedule::zb_v, 2, 2), 0);
    ADD_FAILURE() << "not refused";
  } catch (const UnsupportedError& error) {
    EXPECT_NE(std::string(error.what()).find("zb_v"), std::string::npos) << error.what();
  }
}

// ---- spoilt programs ----

WholeMesh unplanned(WholeMesh made) {
  for (Program& program : made.programs) link(program, nullptr, 0);
  return made;
}

WholeMesh sound() {
  return unplanned({tied_model(6),
                    {.pipeline = 2, .replicate = 2, .shard = 2},
                    spec_of(8, 3, PipelineSchedule::one_forward_one_backward, 1, 3)});
}

bool found(const VerifyReport& report, std::initializer_list<Fault> any) {
  return std::ranges::any_of(report.findings, [&](const Finding& finding) {
    return std::ranges::find(any, finding.fault) != any.end();
  });
}

template <typename Choose>
InstructionId first(const Program& program, Choose choose) {
  const auto at = std::find_if(program.instructions.begin(), program.instructions.end(), choose);
  return static_cast<InstructionId>(at - program.instructions.begin());
}

// Takes an instruction out, as if it had never been issued: what it did stays undone, and the waits are
// computed anew.
void drop(Program& program, InstructionId id) {
  program.instructions.erase(program.instructions.begin() + id);
  for (Buffer& buffer : program.buffers)
    for (Lifetime& lifetime : buffer.lifetimes) {
      lifetime.first -= lifetime.first > id;
      lifetime.last -= lifetime.last >= id && lifetime.last > 0;
    }
  link(program, nullptr, 0);
}

TEST(SpoiltPipeline, ADroppedSendIsFound) {
  WholeMesh made = sound();
  ASSERT_TRUE(made.verified_alone().ok()) << made.verified_alone().to_string();
  for (std::size_t rank : {0u, 1u})
    for (Lane lane : {Lane::send_output, Lane::send_gradient, Lane::receive_output, Lane::receive_gradient}) {
      WholeMesh spoilt = sound();
      Program& program = spoilt.programs[rank];
      const InstructionId id = first(program, [&](const Instruction& i) { return i.lane == lane; });
      const bool outwards = lane == Lane::send_output || lane == Lane::receive_gradient;
      ASSERT_EQ(id < program.instructions.count(), outwards == (rank == 0));
      if (outwards != (rank == 0)) continue;
      drop(program, id);
      EXPECT_TRUE(found(spoilt.verified_alone(),
                        {Fault::collective_mismatch, Fault::read_before_write, Fault::outside_lifetime}))
          << rank << " " << name_of(lane);
    }
}

TEST(SpoiltPipeline, SwappedMessagesAndCollectivesAreFound) {
  WholeMesh made = sound();
  Program& program = made.programs[0];
  const auto sends = [&](const Instruction& i) {
    return i.lane == Lane::send_output && program.flat_of(i) < 0;
  };
  const InstructionId one = first(program, sends);
  auto other = std::find_if(program.instructions.begin() + one + 1, program.instructions.end(), sends);
  ASSERT_NE(other, program.instructions.end());
  std::swap(program.instructions[one].microbatch, other->microbatch);
  EXPECT_TRUE(found(made.verified_alone(), {Fault::collective_mismatch}));

  // One program for all ranks of a group cannot mismatch, so one rank is given another.
  WholeMesh swapped = sound();
  swapped.programs.push_back(swapped.programs[0]);
  swapped.program_of_rank[0] = 2;
  const auto gathers = [](const Instruction& i) { return i.op == Opcode::all_gather; };
  Program& changed = swapped.programs[2];
  const InstructionId gather = first(changed, gathers);
  auto second = std::find_if(changed.instructions.begin() + gather + 1, changed.instructions.end(), gathers);
  std::swap(changed.instructions[gather].operands, second->operands);
  EXPECT_TRUE(found(swapped.verified_alone(), {Fault::collective_mismatch}));
}

TEST(SpoiltPipeline, AnEarlyReleaseIsFound) {
  for (const BufferRole role : {BufferRole::output, BufferRole::output_gradient, BufferRole::value,
                                BufferRole::gathered, BufferRole::gradient}) {
    WholeMesh made = sound();
    bool changed = false;
    for (Buffer& buffer : made.programs[0].buffers) {
      if (changed || buffer.role != role || buffer.lifetimes.empty()) continue;
      Lifetime& lifetime = buffer.lifetimes[0];
      if (lifetime.last == lifetime.first) continue;
      lifetime.last = lifetime.first;
      changed = true;
    }
    ASSERT_TRUE(changed);
    EXPECT_TRUE(found(made.verified_alone(), {Fault::outside_lifetime})) << static_cast<int>(role);
  }
}

TEST(SpoiltPipeline, SendsThatWaitForEachOtherAreADeadlock) {
  WholeMesh made = unplanned({chain(4, 100), {.pipeline = 2}, spec_of(4, 0, PipelineSchedule::gpipe, 1, 1)});
  // The first rank sends its output only when it has the gradient of it.
  Program& program = made.programs[0];
  const InstructionId send = first(program, [](const Instruction& i) { return i.op == Opcode::send; });
  const InstructionId receive = first(program, [](const Instruction& i) { return i.op == Opcode::receive; });
  ASSERT_LT(send, receive);
  Instruction late = program.instructions[send];
  program.instructions[send] = program.instructions[receive];
  program.instructions[receive] = late;
  for (Instruction& instruction : program.instructions) instruction.waits.clear();
  program.instructions[receive].waits = {send};
  EXPECT_TRUE(found(made.verified_alone(), {Fault::deadlock})) << made.verified_alone().to_string();
}

TEST(SpoiltPipeline, AProgramOnAnotherPlaceIsMalformed) {
  WholeMesh made = sound();
  std::ranges::fill(made.program_of_rank, 0);
  EXPECT_TRUE(found(made.verified_alone(), {Fault::malformed}));
}

}  // namespace
}  // namespace tessera::testing
