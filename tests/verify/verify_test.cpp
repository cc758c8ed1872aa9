// What one rank's program can be wrong in, on programs small enough to see why.
#include "tessera/verify.h"

#include <gtest/gtest.h>

#include "tessera/error.h"
#include "tests/program/hand_made.h"

namespace tessera {
namespace {

using testing::HandMade;
using testing::has;

// gather a | use a, which reads it | gather b into the same buffer.
struct GatherUse {
  HandMade made;
  BufferId shard = made.persistent("shard");
  BufferId gathered = made.passing("gathered", {{0, 1}, {2, 3}});
  InstructionId gather_a = made.gather(0, shard, gathered);
  InstructionId use_a = made.use(0, {gathered}, {}, {gather_a});
  InstructionId gather_b = made.gather(1, shard, gathered, {use_a});
  InstructionId use_b = made.use(1, {gathered}, {}, {gather_b});
};

TEST(Verify, ASoundProgramIsProved) {
  const VerifyReport report = GatherUse().made.verified();
  EXPECT_TRUE(report.ok()) << report.to_string();
  EXPECT_EQ(report.to_string(), "");
}

TEST(Verify, AMissingWaitNamesBothInstructionsAndTheBuffer) {
  GatherUse step;
  step.made.at(step.use_a).waits.clear();
  const VerifyReport report = step.made.verified();
  ASSERT_TRUE(has(report, Fault::unordered_access, {step.gather_a, step.use_a}));
  EXPECT_EQ(
      report.findings.front().message,
      "#0 all_gather of parameters of a, microbatch 0 writes 'gathered' and #1 forward of a, microbatch 0 "
      "reads it, but neither waits for the other");
  EXPECT_TRUE(report.to_string().starts_with("program 0: unordered access: #0 all_gather"));
}

TEST(Verify, AWriteMustWaitForReaders) {
  GatherUse step;
  step.made.at(step.gather_b).waits.clear();
  EXPECT_TRUE(has(step.made.verified(), Fault::unordered_access, {step.use_a, step.gather_b}));
}

TEST(Verify, AWriteMustWaitForReadersOnEveryLane) {
  HandMade made;
  const BufferId shared = made.persistent("shared"), out = made.persistent("out");
  const InstructionId write = made.use(0, {}, {shared});
  const InstructionId read = made.reduce(0, shared, out, {write});
  const InstructionId also = made.gather(0, shared, made.persistent("copy"), {write});
  const InstructionId again = made.use(1, {}, {shared}, {read, also});
  EXPECT_TRUE(made.verified().ok()) << made.verified().to_string();
  made.at(again).waits = {read};
  EXPECT_TRUE(has(made.verified(), Fault::unordered_access, {also, again}));
  made.at(again).waits = {also};
  EXPECT_TRUE(has(made.verified(), Fault::unordered_access, {read, again}));
}

TEST(Verify, TwoReadersNeedNoOrder) {
  HandMade made;
  const BufferId shared = made.persistent("shared");
  made.gather(0, shared, made.persistent("x"));
  made.reduce(0, shared, made.persistent("y"));
  EXPECT_TRUE(made.verified().ok()) << made.verified().to_string();
}

TEST(Verify, OrderMayGoThroughAThirdLane) {
  HandMade made;
  const BufferId data = made.persistent("data"), other = made.persistent("other");
  const InstructionId first = made.gather(0, other, data);
  const InstructionId middle = made.use(0, {}, {}, {first});
  made.reduce(0, data, made.persistent("sum"), {middle});
  EXPECT_TRUE(made.verified().ok()) << made.verified().to_string();
}

TEST(Verify, AccessesOutsideALifetime) {
  GatherUse step;
  step.made.buffer(step.gathered).lifetimes = {{0, 0}, {2, 3}};
  EXPECT_TRUE(has(step.made.verified(), Fault::outside_lifetime, {0, step.use_a}));
  step.made.buffer(step.gathered).lifetimes = {{0, 1}};
  EXPECT_TRUE(has(step.made.verified(), Fault::outside_lifetime, {step.gather_b}));
  step.made.buffer(step.gathered).lifetimes = {{1, 3}};
  EXPECT_TRUE(has(step.made.verified(), Fault::outside_lifetime, {step.gather_a}));
  step.made.buffer(step.gathered).lifetimes.clear();
  EXPECT_TRUE(has(step.made.verified(), Fault::outside_lifetime, {step.gather_a}));
}

TEST(Verify, ALifetimeBeginsWithAWrite) {
  GatherUse step;
  step.made.buffer(step.gathered).lifetimes = {{0, 0}, {1, 3}};
  EXPECT_TRUE(has(step.made.verified(), Fault::read_before_write, {step.use_a}));
  GatherUse updated;  // an update in place reads what was there before
  updated.made.at(updated.use_a).operands = testing::accesses({updated.gathered}, {updated.gathered});
  updated.made.buffer(updated.gathered).lifetimes = {{0, 0}, {1, 3}};
  EXPECT_TRUE(has(updated.made.verified(), Fault::read_before_write, {updated.use_a}));
}

TEST(Verify, LifetimesEndWithTheProgramAndDoNotMeet) {
  GatherUse step;
  step.made.buffer(step.gathered).lifetimes = {{0, 1}, {2, 4}};
  EXPECT_TRUE(has(step.made.verified(), Fault::never_released));
  step.made.buffer(step.gathered).lifetimes = {{0, 2}, {2, 3}};
  EXPECT_TRUE(has(step.made.verified(), Fault::never_released));
  step.made.buffer(step.gathered).lifetimes = {{0, 1}, {3, 2}};
  EXPECT_TRUE(has(step.made.verified(), Fault::never_released));
  GatherUse persistent;
  persistent.made.buffer(persistent.shard).lifetimes = {{0, 3}};
  EXPECT_TRUE(has(persistent.made.verified(), Fault::never_released));
}

TEST(Verify, RedundantWaits) {
  {
    GatherUse step;  // its own lane implies it
    step.made.at(step.gather_b).waits = {step.gather_a, step.use_a};
    EXPECT_TRUE(has(step.made.verified(), Fault::redundant_wait, {step.gather_a, step.gather_b}));
    EXPECT_FALSE(has(step.made.verified(), Fault::redundant_wait, {step.use_a}));
  }
  {
    GatherUse step;  // the use before it on the lane has waited for it
    step.made.at(step.use_b).waits = {step.gather_a, step.gather_b};
    EXPECT_TRUE(has(step.made.verified(), Fault::redundant_wait, {step.gather_a, step.use_b}));
  }
  {
    GatherUse step;
    step.made.at(step.use_b).waits = {step.gather_b, step.gather_b};
    EXPECT_TRUE(has(step.made.verified(), Fault::redundant_wait, {step.gather_b, step.use_b}));
  }
  {
    HandMade made;  // another wait implies it
    const InstructionId far = made.use(0, {}, {});
    const InstructionId near = made.gather(0, made.persistent("s"), made.persistent("g"), {far});
    const InstructionId last = made.reduce(0, made.persistent("f"), made.persistent("t"), {far, near});
    EXPECT_TRUE(has(made.verified(), Fault::redundant_wait, {far, last}));
    made.at(last).waits = {near};
    EXPECT_TRUE(made.verified().ok()) << made.verified().to_string();
  }
}

struct Reductions {
  explicit Reductions(int microbatches) {
    made.program().microbatches = microbatches;
    for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
      const InstructionId id = made.reduce(0, gradient, sum);
      made.at(id).microbatch = microbatch;
      if (microbatch > 0) testing::operand_of(made.at(id), Role::to).access = Access::add;
    }
  }
  HandMade made;
  BufferId gradient = made.persistent("gradient");
  BufferId sum = made.persistent("sum");
};

TEST(Verify, SumsOverMicrobatches) {
  EXPECT_TRUE(Reductions(3).made.verified().ok());
  Reductions swapped(3);
  swapped.made.at(1).microbatch = 2;
  swapped.made.at(2).microbatch = 1;
  EXPECT_TRUE(has(swapped.made.verified(), Fault::microbatch_order, {1, 2}));
  Reductions afresh(3);
  testing::operand_of(afresh.made.at(1), Role::to).access = Access::write;
  EXPECT_TRUE(has(afresh.made.verified(), Fault::microbatch_order, {0, 1}));
  Reductions continued(3);
  testing::operand_of(continued.made.at(0), Role::to).access = Access::add;
  EXPECT_TRUE(has(continued.made.verified(), Fault::microbatch_order, {0}));
  Reductions incomplete(3);
  incomplete.made.program().microbatches = 4;
  EXPECT_TRUE(has(incomplete.made.verified(), Fault::microbatch_order, {0, 1, 2}));
}

TEST(Verify, UsesTakeMicrobatchesInOrder) {
  HandMade made;
  made.program().microbatches = 2;
  made.at(made.use(0, {}, {})).microbatch = 1;
  made.at(made.use(1, {}, {})).microbatch = 0;  // another unit may lag behind
  EXPECT_TRUE(made.verified().ok()) << made.verified().to_string();
  made.at(made.use(0, {}, {})).microbatch = 0;
  EXPECT_TRUE(has(made.verified(), Fault::microbatch_order, {0, 2}));
}

TEST(Verify, MalformedInstructionsAreNamedAndNothingIsFollowed) {
  const auto spoilt = [](auto spoil) {
    GatherUse step;
    spoil(step);
    const VerifyReport report = step.made.verified();
    return !report.ok() && has(report, Fault::malformed) && has(report, report.findings[0].fault, {2});
  };
  EXPECT_TRUE(spoilt([](GatherUse& step) { step.made.at(2).waits = {3}; }));
  EXPECT_TRUE(spoilt([](GatherUse& step) { step.made.at(2).waits = {2}; }));
  EXPECT_TRUE(spoilt([](GatherUse& step) { step.made.at(2).waits = {-1}; }));
  EXPECT_TRUE(spoilt([](GatherUse& step) { step.made.at(2).waits = {1, 0}; }));
  const auto from = [](GatherUse& step) -> Operand& {
    return testing::operand_of(step.made.at(2), Role::from);
  };
  EXPECT_TRUE(spoilt([&](GatherUse& step) { from(step).buffer = 2; }));
  EXPECT_TRUE(spoilt([&](GatherUse& step) { from(step).role = Role::squares; }));
  EXPECT_TRUE(spoilt([&](GatherUse& step) { from(step).access = Access::modify; }));
  EXPECT_TRUE(spoilt([&](GatherUse& step) { from(step).type = DType::bf16; }));
  EXPECT_TRUE(spoilt([&](GatherUse& step) { from(step).region = {}; }));
  EXPECT_TRUE(spoilt([&](GatherUse& step) { from(step).region = Region::part_of(kSlice); }));
  EXPECT_TRUE(spoilt([&](GatherUse& step) { from(step).region = Region::sum_of(kAllParameters); }));
  EXPECT_TRUE(spoilt([](GatherUse& step) { step.made.at(2).when = 0; }));  // which is no decision
  EXPECT_TRUE(spoilt([](GatherUse& step) { step.made.at(2).channel = -1; }));
  EXPECT_TRUE(spoilt([](GatherUse& step) { step.made.at(2).channel = 2; }));
  EXPECT_TRUE(spoilt([](GatherUse& step) { step.made.at(2).channel = 1; }));          // the reduce lane's
  EXPECT_TRUE(spoilt([](GatherUse& step) { step.made.at(2).op = Opcode::update; }));  // keeps its channel
  EXPECT_TRUE(spoilt([](GatherUse& step) { step.made.at(2).unit = 2; }));
  EXPECT_TRUE(spoilt([&](GatherUse& step) {
    step.made.buffer(from(step).buffer).flat = 1;  // and what is gathered is of flat 0
  }));
  EXPECT_TRUE(spoilt([](GatherUse& step) { step.made.at(2).microbatch = 1; }));
  EXPECT_TRUE(spoilt([](GatherUse& step) { step.made.at(2).lane = static_cast<Lane>(kLanes); }));
  EXPECT_TRUE(spoilt([](GatherUse& step) { step.made.at(2).operands.pop_back(); }));
  EXPECT_TRUE(spoilt([](GatherUse& step) {  // a use, which runs on the compute lane whatever it says
    step.made.at(2).op = Opcode::use;
    step.made.at(2).channel = -1;
  }));
  EXPECT_TRUE(spoilt([](GatherUse& step) { step.made.program().channels[0].axis = Axis::world; }));
  GatherUse doubled;
  doubled.made.program().channels.push_back(doubled.made.program().channels.front());
  EXPECT_TRUE(has(doubled.made.verified(), Fault::malformed));
}

// A plan with every buffer at an address of its own choice.
VerifyReport verified_at(const HandMade& made, const std::vector<std::int64_t>& offsets,
                         std::int64_t arena_bytes) {
  MemoryPlan plan;
  plan.spaces[0].arena_bytes = arena_bytes;
  std::vector<std::vector<std::int64_t>>& places = plan.offsets.emplace_back();
  for (std::int64_t offset : offsets) places.push_back({offset});
  const Program program = const_cast<HandMade&>(made).program();
  const PlannedProgram planned{.plan = &plan, .index = 0};
  return verify({.mesh = {}, .programs = {&program, 1}}, {&planned, 1});
}

// Gathered | opened a, which reads it | used b | closed a.
struct Leased {
  HandMade made;
  BufferId shard = made.persistent("shard");
  BufferId gathered = made.passing("gathered", {{0, 4}});
  InstructionId gather = made.gather(0, shard, gathered);
  InstructionId open = use(UseEdge::open, 0, {gathered}, {gather});
  InstructionId inside = use(UseEdge::whole, 1, {}, {});
  InstructionId close = use(UseEdge::close, 0, {gathered}, {});
  InstructionId behind = use(UseEdge::whole, 1, {}, {});

  InstructionId use(UseEdge edge, UnitId unit, std::vector<BufferId> reads,
                    std::vector<InstructionId> waits) {
    const InstructionId id = made.use(unit, std::move(reads), {}, std::move(waits));
    made.at(id).edge = edge;
    return id;
  }
};

TEST(Verify, WhatAnOpenedUseTouchesIsItsUntilItIsClosed) {
  EXPECT_TRUE(Leased().made.verified().ok()) << Leased().made.verified().to_string();
  Leased twice;  // two lives that both ends lie in
  twice.made.buffer(twice.gathered).lifetimes = {{0, 2}, {3, 4}};
  EXPECT_TRUE(has(twice.made.verified(), Fault::outside_lifetime, {twice.open, twice.close}));
  Leased forgotten;  // by the closing one, so that nothing waits for it
  forgotten.made.at(forgotten.close).operands.clear();
  EXPECT_TRUE(has(forgotten.made.verified(), Fault::malformed, {forgotten.open, forgotten.close}));
  Leased overwritten;  // ordered with both ends, and yet between them
  Instruction& between = overwritten.made.at(overwritten.inside);
  between = overwritten.made.at(overwritten.gather);
  between.waits = {overwritten.open};
  overwritten.made.at(overwritten.close).waits = {overwritten.inside};
  EXPECT_TRUE(
      has(overwritten.made.verified(), Fault::unordered_access, {overwritten.open, overwritten.inside}));
}

TEST(Verify, OpenedUsesAreClosedInTurn) {
  Leased left_open;
  left_open.made.at(left_open.close).edge = UseEdge::whole;
  EXPECT_TRUE(has(left_open.made.verified(), Fault::malformed, {left_open.open}));
  Leased never_opened;
  never_opened.made.at(never_opened.open).edge = UseEdge::whole;
  EXPECT_TRUE(has(never_opened.made.verified(), Fault::malformed, {never_opened.close}));
  Leased crossed;
  crossed.made.at(crossed.inside).edge = UseEdge::open;
  EXPECT_TRUE(has(crossed.made.verified(), Fault::malformed, {crossed.close}));
}

// Two programs of one plan: what persists, what keeps one address, and what passes.
struct TwoPrograms {
  std::vector<Program> programs;
  MemoryPlan plan;

  TwoPrograms() {
    for (int i = 0; i < 2; ++i) {
      HandMade made;
      made.persistent("weights");
      if (i == 0) made.persistent("moments");
      const BufferId fixed = made.passing("fixed", {{0, 0}}), passing = made.passing("passing", {{0, 0}});
      made.buffer(fixed).one_address = true;
      made.use(0, {}, {fixed, passing});
      programs.push_back(made.program());
    }
    plan.spaces[0].arena_bytes = 1280;
    plan.offsets = {{{0}, {256}, {512}, {768}}, {{0}, {512}, {1024}}};
  }
};

TEST(Verify, ProgramsThatTakeTurnsLeaveWhatPersistsAlone) {
  EXPECT_TRUE(verify_turns(TwoPrograms().programs, TwoPrograms().plan).ok());
  const auto found = [](int buffer, std::int64_t offset, const char* what) {
    TwoPrograms two;
    two.plan.offsets[1][buffer] = {offset};
    const VerifyReport report = verify_turns(two.programs, two.plan);
    ASSERT_TRUE(has(report, Fault::malformed)) << what;
    EXPECT_EQ(report.findings[0].program, 1);
    EXPECT_NE(report.to_string().find(what), std::string::npos) << report.to_string();
  };
  found(0, 1024, "'weights' of 256 bytes at 1024");
  found(1, 768, "'fixed' of 256 bytes at 768");
  found(2, 256, "'passing' bytes of 'moments', which persists");
}

// Two buffers that never live at one time, touched on two lanes.
struct Reuse {
  HandMade made;
  BufferId shard = made.persistent("shard");
  BufferId early = made.passing("early", {{0, 1}}, 512);
  BufferId late = made.passing("late", {{2, 3}}, 512);
  InstructionId gather_a = made.gather(0, shard, early);
  InstructionId use_a = made.use(0, {early}, {}, {gather_a});
  InstructionId gather_b = made.gather(1, shard, late);
  InstructionId use_b = made.use(1, {late}, {}, {gather_b});
};

TEST(Verify, SharedAddressesNeedOrderToo) {
  Reuse step;
  EXPECT_TRUE(verified_at(step.made, {0, 256, 768}, 1280).ok());
  for (std::int64_t late : {256, 512}) {  // the same place, or half of it
    const VerifyReport report = verified_at(step.made, {0, 256, late}, 1280);
    ASSERT_TRUE(has(report, Fault::unordered_access, {step.use_a, step.gather_b})) << report.to_string();
    EXPECT_NE(report.to_string().find("'late', which shares addresses"), std::string::npos);
  }
  step.made.at(step.gather_b).waits = {step.use_a};
  EXPECT_TRUE(verified_at(step.made, {0, 256, 512}, 1280).ok());
}

TEST(Verify, APlanMustBeSound) {
  Reuse step;
  EXPECT_TRUE(has(verified_at(step.made, {0, 256}, 1280), Fault::malformed)) << "a buffer without a place";
  EXPECT_TRUE(has(verified_at(step.made, {0, 256, 776}, 1288), Fault::malformed)) << "not aligned";
  EXPECT_TRUE(has(verified_at(step.made, {0, 256, 1024}, 1280), Fault::malformed)) << "outside the arena";
  EXPECT_TRUE(has(verified_at(step.made, {0, -256, 1024}, 2048), Fault::malformed)) << "below the arena";
  EXPECT_TRUE(has(verified_at(step.made, {512, 256, 1024}, 2048), Fault::malformed)) << "on a persistent one";
  step.made.buffer(step.early).lifetimes = {{0, 2}};
  EXPECT_TRUE(has(verified_at(step.made, {0, 256, 512}, 2048), Fault::malformed, {2})) << "both live";
}

TEST(Verify, FindingsAreLimited) {
  HandMade made;
  const BufferId never = made.passing("never", {});
  for (int i = 0; i < 100; ++i) made.use(0, {never}, {});
  EXPECT_EQ(made.verified().findings.size(), 32u);
}

TEST(Verify, ArgumentsThatAreNoWorld) {
  const Program program;
  EXPECT_THROW(verify({}), UsageError);
  EXPECT_THROW(verify({.mesh = {.shard = 2}, .programs = {&program, 1}, .program_of_rank = {0}}), UsageError);
  EXPECT_THROW(verify({.mesh = {}, .programs = {&program, 1}, .program_of_rank = {1}}), UsageError);
  const std::vector<PlannedProgram> plans(2);
  EXPECT_THROW(verify({.mesh = {}, .programs = {&program, 1}}, plans), UsageError);
}

}  // namespace
}  // namespace tessera
