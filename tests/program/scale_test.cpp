// Large programs cost little: a model of 96 layers on 1,024 ranks, in under a second.
#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <iostream>

#include "tests/program/accesses.h"
#include "tests/program/mesh_programs.h"
#include "tests/program/sanitized.h"
#include "tests/program/small_graph.h"
#include "tests/program/small_models.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSecondsAllowed = testing::kSanitized ? 60 : 1;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

TEST(Scale, NinetySixLayersOn1024Ranks) {
  const Clock::time_point start = Clock::now();
  const std::vector<UnitSpec> units = testing::chain(96, 12 * 12288LL * 12288);
  const Layout layout(units, 1024);
  const Mesh mesh{.shard = 1024};
  StepSpec spec{
      .microbatches = 8,
      .strategy = {.placements = Placements::of_stage(3), .prefetch = 2, .recompute = Recompute::full},
      .activations = testing::activations(96),
      .order = {}};
  std::vector<Program> programs = {build_step(layout, mesh, spec)};
  spec.kind = StepKind::evaluate;
  programs.push_back(build_step(layout, mesh, spec));
  const double built = seconds_since(start);
  const testing::Planned planned(std::move(programs));
  const double linked = seconds_since(start);
  const std::vector<PlannedProgram> plans = {{&planned.plan, 0}, {&planned.plan, 1}};
  const WorldPrograms world{
      .mesh = mesh, .programs = planned.programs, .program_of_rank = std::vector<int>(1024, 0)};
  const VerifyReport report = verify(world, plans);
  const double total = seconds_since(start);
  EXPECT_TRUE(report.ok()) << report.to_string();
  EXPECT_GT(planned.programs[0].instructions.size(), 4000u);
  std::cout << planned.programs[0].instructions.size() << " instructions: built in " << built
            << " s, planned and linked in " << linked - built << " s, verified in " << total - linked
            << " s\n";
  EXPECT_LT(total, kSecondsAllowed);
}

// Time grows with the instructions, not with their square.
TEST(Scale, AThousandMicrobatches) {
  const int microbatches = testing::kSanitized ? 200 : 1000;
  const std::vector<UnitSpec> units = testing::chain(40, 1 << 20);
  const Mesh mesh{.pipeline = 4, .shard = 2};
  const StepSpec spec{.microbatches = microbatches,
                      .strategy = {.placements = Placements::of_stage(3)},
                      .activations = testing::activations(40),
                      .order = {}};
  const std::clock_t start = std::clock();
  const testing::WholeMesh made(units, mesh, spec);
  const std::clock_t planned = std::clock();
  const VerifyReport report = made.verified();
  const std::clock_t end = std::clock();
  EXPECT_TRUE(report.ok()) << report.to_string();
  const VerifyReport meaning = made.proved();
  const std::clock_t proved = std::clock();
  EXPECT_TRUE(meaning.ok()) << meaning.to_string();
  std::size_t instructions = 0;
  for (const Program& program : made.programs) instructions += program.instructions.size();
  const auto seconds = [](std::clock_t ticks) { return static_cast<double>(ticks) / CLOCKS_PER_SEC; };
  std::cout << instructions << " instructions: built and planned in " << seconds(planned - start)
            << " s, verified in " << seconds(end - planned) << " s, proved in " << seconds(proved - end)
            << " s\n";
  EXPECT_LT(seconds(proved - start), testing::kSanitized ? 120 : 12);
}

// All pipeline ranks of a large hybrid mesh.
TEST(Scale, NinetySixLayersOnEightPipelineRanks) {
  const std::vector<UnitSpec> units = testing::chain(96, 12 * 12288LL * 12288);
  const Mesh mesh{.pipeline = 8, .replicate = 8, .shard = 16};
  const StepSpec spec{
      .microbatches = 64,
      .strategy = {.placements = Placements::of_stage(2),
                   .pipeline = {.schedule = PipelineSchedule::interleaved, .chunks = 2, .cuts = {}}},
      .activations = testing::activations(96),
      .order = {}};
  const Clock::time_point start = Clock::now();
  const testing::WholeMesh made(units, mesh, spec);
  const double planned = seconds_since(start);
  const VerifyReport report = made.verified();
  const double verified = seconds_since(start);
  const VerifyReport meaning = made.proved();
  const double proved = seconds_since(start);
  EXPECT_TRUE(report.ok()) << report.to_string();
  EXPECT_TRUE(meaning.ok()) << meaning.to_string();
  std::size_t instructions = 0;
  for (const Program& program : made.programs) instructions += program.instructions.size();
  std::cout << instructions << " instructions of 8 programs: built and planned in " << planned
            << " s, verified in " << verified - planned << " s, proved in " << proved - verified
            << " s, all in " << proved << " s (target 1 on two cores)\n";
  EXPECT_LT(proved, 4 * kSecondsAllowed);
}

// Builds and proves the programs of 96 such units of split_chain(), within so many seconds on a quiet
// machine.
void expect_proved_in_time(const UnitGraph& unit, int microbatches, double target) {
  const Mesh mesh{.pipeline = 8, .replicate = 8, .shard = 16, .tensor = 8};
  StepSpec spec{
      .microbatches = microbatches,
      .strategy = {.placements = Placements::of_stage(2),
                   .pipeline = {.schedule = PipelineSchedule::interleaved, .chunks = 2, .cuts = {}}},
      .activations = {},
      .order = {}};
  spec.activations.units.assign(96, unit);
  const Clock::time_point start = Clock::now();
  const testing::WholeMesh made(testing::split_chain(96), mesh, spec);
  const double planned = seconds_since(start);
  const std::clock_t before = std::clock();
  const VerifyReport meaning = made.proved();
  const double proved = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_TRUE(meaning.ok()) << meaning.to_string();
  std::size_t instructions = 0;
  for (const Program& program : made.programs) instructions += program.instructions.size();
  std::cout << instructions << " instructions of 8 programs: built and planned in " << planned
            << " s, proved in " << proved << " s (target " << target << ")\n";
  EXPECT_LT(proved, 4 * target * kSecondsAllowed);
}

// The same with eight tensor ranks: every unit exchanges values ten times a microbatch.
TEST(Scale, NinetySixLayersOnEightPipelineAndEightTensorRanks) {
  expect_proved_in_time(testing::small_split_graph(8), testing::kSanitized ? 8 : 64, 3);
}

// And where each of these travels in four pieces, which are made and used one by one.
TEST(Scale, NinetySixLayersThatExchangePieces) {
  expect_proved_in_time(testing::InPieces(8, 4).graph, testing::kSanitized ? 4 : 16, 3);
}

// Ranks that differ are told apart by the groups they meet in, not one by one.
TEST(Scale, OneOddRankAmong1024) {
  const std::vector<UnitSpec> units = testing::chain(24, 1 << 20);
  const Mesh mesh{.shard = 1024};
  const StepSpec spec{.microbatches = 2,
                      .strategy = {.placements = Placements::of_stage(3)},
                      .activations = testing::activations(24),
                      .order = {}};
  std::vector<Program> programs(2, build_step(Layout(units, 1024), mesh, spec));
  std::vector<int> of_rank(1024, 0);
  of_rank[517] = 1;
  const Clock::time_point start = Clock::now();
  EXPECT_TRUE(verify({.mesh = mesh, .programs = programs, .program_of_rank = of_rank}).ok());
  EXPECT_LT(seconds_since(start), kSecondsAllowed);

  // The odd rank adds up its microbatches from another one on: same collectives, another meaning.
  for (Instruction& instruction : programs[1].instructions)
    if (instruction.op == Opcode::reduce_scatter && programs[1].flat_of(instruction) == 7) {
      Access& access = testing::operand_of(instruction, Role::to).access;
      access = access == Access::add ? Access::write : Access::add;
    }
  const VerifyReport report = verify({.mesh = mesh, .programs = programs, .program_of_rank = of_rank});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.findings.front().fault, Fault::collective_mismatch);
  EXPECT_NE(report.findings.front().message.find("rank 517"), std::string::npos);
}

}  // namespace
}  // namespace tessera
