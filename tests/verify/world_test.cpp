// What the programs of several ranks can be wrong in together.
#include <gtest/gtest.h>

#include <array>

#include "src/program/rank_classes.h"
#include "tests/program/hand_made.h"

namespace tessera {
namespace {

using testing::HandMade;
using testing::has;

// A gather and a reduction, on lanes of their own, the first in issue order waited for by the second or not.
Program crossing(bool gather_first, bool wait) {
  HandMade made;
  const BufferId shard = made.persistent("shard"), gathered = made.persistent("gathered");
  const BufferId gradient = made.persistent("gradient"), sum = made.persistent("sum");
  const std::vector<InstructionId> waits = wait ? std::vector{0} : std::vector<InstructionId>{};
  if (gather_first) {
    made.gather(0, shard, gathered);
    made.reduce(1, gradient, sum, waits);
  } else {
    made.reduce(1, gradient, sum);
    made.gather(0, shard, gathered, waits);
  }
  return made.program();
}

VerifyReport verified(const Mesh& mesh, const std::vector<Program>& programs, std::vector<int> of_rank) {
  return verify({.mesh = mesh, .programs = programs, .program_of_rank = std::move(of_rank)});
}

TEST(VerifyWorld, CrossedWaitsAreADeadlock) {
  const std::vector<Program> programs = {crossing(true, true), crossing(false, true)};
  const VerifyReport report = verified({.shard = 2}, programs, {0, 1});
  ASSERT_EQ(report.findings.size(), 1u) << report.to_string();
  EXPECT_TRUE(has(report, Fault::deadlock, {0, 1}));
  for (const char* words :
       {"on rank 0 #1 reduce_scatter of b, microbatch 0 comes behind #0 all_gather",
        "on rank 1 #1 all_gather of parameters of a, microbatch 0 comes behind #0 reduce"})
    EXPECT_NE(report.to_string().find(words), std::string::npos) << report.to_string();
}

TEST(VerifyWorld, CrossedOrderOnTwoLanesAloneIsNone) {
  const std::vector<Program> programs = {crossing(true, false), crossing(false, false)};
  EXPECT_TRUE(verified({.shard = 2}, programs, {0, 1}).ok());
  const std::vector<Program> one_sided = {crossing(true, true), crossing(false, false)};
  EXPECT_TRUE(verified({.shard = 2}, one_sided, {0, 1}).ok());
}

// The second gather waits for the first, the reduction for the second to have started.
TEST(VerifyWorld, WhatStartsBehindACallThatWaitsIsADeadlock) {
  const auto program = [](bool reduces_first) {
    HandMade made;
    const BufferId shard = made.persistent("shard"), gathered = made.persistent("gathered");
    const BufferId gradient = made.persistent("gradient"), sum = made.persistent("sum");
    std::vector<InstructionId> reduction;
    if (reduces_first) reduction = {made.reduce(1, gradient, sum)};
    made.gather(0, shard, gathered, reduction);
    made.gather(0, shard, gathered);
    if (!reduces_first) made.reduce(1, gradient, sum);
    return made.program();
  };
  const std::vector<Program> programs = {program(false), program(true)};
  WorldPrograms world{.mesh = {.shard = 2}, .programs = programs, .program_of_rank = {0, 1}};
  EXPECT_TRUE(verify(world).ok()) << verify(world).to_string();
  world.starts_in_order = true;
  const VerifyReport report = verify(world);
  ASSERT_EQ(report.findings.size(), 1u) << report.to_string();
  EXPECT_TRUE(has(report, Fault::deadlock));
  EXPECT_NE(report.to_string().find("#2 reduce_scatter of b, microbatch 0 comes behind #0 all_gather"),
            std::string::npos)
      << report.to_string();
}

// Each of two pipeline ranks sends behind what waits for what the other sends: a use, or a gather.
std::vector<Program> waiting_before_they_send(bool gathers) {
  std::vector<Program> programs;
  for (const int rank : {0, 1}) {
    HandMade made;
    made.program().pipeline_rank = rank;
    const BufferId in = made.persistent("in"), out = made.persistent("out");
    const bool first = rank == 0;
    const InstructionId received =
        made.message(first ? Lane::receive_gradient : Lane::receive_output, in, 1 - rank);
    if (gathers)
      made.gather(0, in, made.persistent("gathered"), {received});
    else
      made.use(0, {in}, {}, {received});
    made.message(first ? Lane::send_output : Lane::send_gradient, out, 1 - rank);
    programs.push_back(made.program());
  }
  return programs;
}

// A thread that runs uses itself comes to neither; collectives hold up what is behind them in strict order
// only.
TEST(VerifyWorld, WhatIsIssuedBehindAWaitOfTheIssuerIsADeadlock) {
  for (const bool gathers : {false, true}) {
    const std::vector<Program> programs = waiting_before_they_send(gathers);
    WorldPrograms world{.mesh = {.pipeline = 2}, .programs = programs, .program_of_rank = {0, 1}};
    EXPECT_TRUE(verify(world).ok()) << verify(world).to_string();
    world.issuer_runs = IssuerRuns::compute;
    EXPECT_EQ(has(verify(world), Fault::deadlock), !gathers) << verify(world).to_string();
    world.issuer_runs = IssuerRuns::all_but_messages;
    EXPECT_TRUE(has(verify(world), Fault::deadlock)) << verify(world).to_string();
  }
}

// Ranks deadlock only where they meet: in groups of one program each, all is well.
TEST(VerifyWorld, OnlyRanksOfOneGroupWaitForEachOther) {
  const std::vector<Program> programs = {crossing(true, true), crossing(false, true)};
  const Mesh mesh{.replicate = 2, .shard = 2};
  EXPECT_TRUE(verified(mesh, programs, {0, 0, 1, 1}).ok());
  EXPECT_TRUE(has(verified(mesh, programs, {0, 1, 0, 1}), Fault::deadlock));
  EXPECT_TRUE(has(verified(mesh, programs, {0, 0, 0, 1}), Fault::deadlock));
}

// A circle of three hops, none of which is wrong by itself: three programs, three channels.
TEST(VerifyWorld, ADeadlockThroughThreeRanks) {
  std::vector<Program> programs;
  constexpr std::array kLanesOf = {Lane::gather, Lane::reduce, Lane::compute};
  constexpr std::array kOpsOf = {Opcode::all_gather, Opcode::reduce_scatter, Opcode::reduce_scalars};
  for (int rank = 0; rank < 3; ++rank) {
    HandMade made;
    made.program().channels = {
        {Axis::shard, kLanesOf[0]}, {Axis::shard, kLanesOf[1]}, {Axis::world, kLanesOf[2]}};
    const BufferId from = made.persistent("from");
    std::vector<BufferId> to;
    for (int channel = 0; channel < 3; ++channel)
      to.push_back(made.persistent("to" + std::to_string(channel)));
    // Rank r waits for channel r before it joins channel r + 1.
    for (int k = 0; k < 3; ++k) {
      const int channel = (rank + k) % 3;
      const InstructionId id = made.gather(0, from, to[static_cast<std::size_t>(channel)],
                                           k == 1 ? std::vector{0} : std::vector<InstructionId>{});
      made.at(id).channel = channel;
      made.at(id).lane = kLanesOf[static_cast<std::size_t>(channel)];
      made.at(id).op = kOpsOf[static_cast<std::size_t>(channel)];
      if (made.at(id).op == Opcode::reduce_scatter) {
        std::swap(made.at(id).operands[0].region, made.at(id).operands[1].region);
      } else if (made.at(id).op == Opcode::reduce_scalars) {
        made.at(id).operands = {{.role = Role::scalars,
                                 .buffer = to[static_cast<std::size_t>(channel)],
                                 .access = Access::modify}};
      }
    }
    programs.push_back(made.program());
  }
  const VerifyReport report = verified({.shard = 3}, programs, {0, 1, 2});
  EXPECT_TRUE(has(report, Fault::deadlock, {0, 1})) << report.to_string();
  programs[2].instructions[1].waits.clear();
  EXPECT_TRUE(verified({.shard = 3}, programs, {0, 1, 2}).ok());
}

TEST(VerifyWorld, MismatchesNameBothRanks) {
  Program other = crossing(true, true);
  other.instructions[0].unit = 1;
  const VerifyReport report = verified({.shard = 4}, {crossing(true, true), other}, {0, 0, 1, 0});
  ASSERT_TRUE(has(report, Fault::collective_mismatch, {0}));
  EXPECT_NE(
      report.to_string().find("collective 0 of the gather lane along shard: rank 0 issues #0 all_gather of "
                              "parameters of a, microbatch 0, but rank 2 issues #0 all_gather of "
                              "parameters of b"),
      std::string::npos)
      << report.to_string();
}

TEST(VerifyWorld, ACollectiveTooFewOrOfOtherBytes) {
  Program shorter = crossing(true, true);
  shorter.instructions.pop_back();
  VerifyReport report = verified({.shard = 2}, {crossing(true, true), shorter}, {0, 1});
  EXPECT_TRUE(has(report, Fault::collective_mismatch, {1}));
  EXPECT_NE(report.to_string().find("but rank 1 issues none"), std::string::npos) << report.to_string();

  Program wider = crossing(true, true);
  wider.buffers[1].bytes *= 2;
  EXPECT_TRUE(
      has(verified({.shard = 2}, {crossing(true, true), wider}, {0, 1}), Fault::collective_mismatch, {0}));
}

TEST(VerifyWorld, EqualProgramsUnderTwoIndicesMatch) {
  EXPECT_TRUE(verified({.shard = 4}, {crossing(true, true), crossing(true, true)}, {0, 1, 1, 0}).ok());
}

TEST(VerifyWorld, ChannelsMatchByAxisAndLaneNotByNumber) {
  Program renumbered = crossing(true, true);
  std::swap(renumbered.channels[0], renumbered.channels[1]);
  for (Instruction& instruction : renumbered.instructions) instruction.channel = 1 - instruction.channel;
  EXPECT_TRUE(verified({.shard = 2}, {crossing(true, true), renumbered}, {0, 1}).ok());
}

TEST(RankClasses, OneProgramIsOneClass) {
  const Program program;
  const auto classes = rank_classes({.mesh = {.replicate = 128, .shard = 128}, .programs = {&program, 1}});
  ASSERT_EQ(classes.size(), 1u);
  EXPECT_EQ(classes[0].meets[static_cast<std::size_t>(Axis::shard)], (std::vector<int>{0}));
}

// One odd rank among 16,384 tells apart itself, the two groups it lies in, and the rest.
TEST(RankClasses, TheOddOneOut) {
  const std::vector<Program> programs(2);
  std::vector<int> of_rank(16384, 0);
  of_rank[200] = 1;  // replicate 1, shard 72
  const auto classes = rank_classes(
      {.mesh = {.replicate = 128, .shard = 128}, .programs = programs, .program_of_rank = of_rank});
  ASSERT_EQ(classes.size(), 4u);
  EXPECT_EQ(classes[0].rank, 0);    // meets the odd one along no axis
  EXPECT_EQ(classes[1].rank, 72);   // in its replicate group
  EXPECT_EQ(classes[2].rank, 128);  // in its shard group
  EXPECT_EQ(classes[3].rank, 200);
  EXPECT_EQ(classes[2].meets[static_cast<std::size_t>(Axis::shard)], (std::vector<int>{2, 3}));
  EXPECT_EQ(classes[3].program, 1);
}

}  // namespace
}  // namespace tessera
