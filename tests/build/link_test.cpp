#include <gtest/gtest.h>

#include <cstdint>

#include "tessera/error.h"
#include "tessera/link.h"
#include "tessera/memory_plan.h"
#include "tessera/plan_memory.h"
#include "tests/program/accesses.h"
#include "tests/program/random_programs.h"

namespace tessera {
namespace {

using testing::RandomPrograms;
using Waits = std::vector<InstructionId>;

Instruction on(Lane lane, const std::vector<BufferId>& reads, const std::vector<BufferId>& writes) {
  return {.lane = lane, .operands = testing::accesses(reads, writes), .waits = {99}};
}

Buffer kept(const std::string& name) {
  return {.name = name, .bytes = 256, .persistent = true, .lifetimes = {}};
}

Buffer passing(const std::string& name, std::int64_t bytes, std::vector<Lifetime> lifetimes) {
  return {.name = name, .bytes = bytes, .lifetimes = std::move(lifetimes)};
}

std::vector<Waits> linked(Program program, const MemoryPlan* plan = nullptr) {
  link(program, plan, 0);
  std::vector<Waits> waits;
  for (const Instruction& instruction : program.instructions) waits.push_back(instruction.waits);
  return waits;
}

TEST(Link, OrdersReadersBehindTheWriterAndTheNextWriterBehindThem) {
  Program program;
  program.buffers = {kept("x")};
  program.instructions = {on(Lane::gather, {}, {0}), on(Lane::compute, {0}, {}), on(Lane::reduce, {0}, {}),
                          on(Lane::gather, {}, {0})};
  EXPECT_EQ(linked(program), (std::vector<Waits>{{}, {0}, {0}, {1, 2}}));
}

TEST(Link, OrdersTwoWriters) {
  Program program;
  program.buffers = {kept("x")};
  program.instructions = {on(Lane::gather, {}, {0}), on(Lane::compute, {}, {0}), on(Lane::compute, {0}, {0}),
                          on(Lane::gather, {0}, {})};
  EXPECT_EQ(linked(program), (std::vector<Waits>{{}, {0}, {}, {2}}));
}

TEST(Link, LeavesReadersAloneAndTheirOwnLaneUnsaid) {
  Program program;
  program.buffers = {kept("x"), kept("y")};
  program.instructions = {on(Lane::gather, {0}, {}), on(Lane::compute, {0}, {}), on(Lane::compute, {0}, {1}),
                          on(Lane::compute, {1}, {})};
  EXPECT_EQ(linked(program), (std::vector<Waits>{{}, {}, {}, {}}));
}

TEST(Link, WaitsOnlyForTheLastOfALane) {
  Program program;
  program.buffers = {kept("x"), kept("y")};
  program.instructions = {on(Lane::gather, {}, {0}), on(Lane::gather, {}, {1}), on(Lane::compute, {0, 1}, {}),
                          on(Lane::compute, {0}, {})};
  EXPECT_EQ(linked(program), (std::vector<Waits>{{}, {}, {1}, {}}));
}

TEST(Link, LeavesOutWhatAnotherWaitImplies) {
  // gather 0 -> compute 1 -> reduce 2 reads both: the wait for 1 implies the one for 0.
  Program program;
  program.buffers = {kept("x"), kept("y")};
  program.instructions = {on(Lane::gather, {}, {0}), on(Lane::compute, {0}, {1}),
                          on(Lane::reduce, {0, 1}, {})};
  EXPECT_EQ(linked(program), (std::vector<Waits>{{}, {0}, {1}}));
}

TEST(Link, LeavesOutWhatAnEarlierWaitOfTheLaneImplies) {
  Program program;
  program.buffers = {kept("x"), kept("y"), kept("z")};
  program.instructions = {on(Lane::gather, {}, {0}), on(Lane::reduce, {0}, {1}), on(Lane::compute, {1}, {}),
                          on(Lane::compute, {0}, {2})};
  EXPECT_EQ(linked(program), (std::vector<Waits>{{}, {0}, {1}, {}}));
}

TEST(Link, AddsWhatASharedAddressNeeds) {
  // "a" is computed and reduced, then "b" takes its place: the gather must wait for the reduction.
  Program program;
  program.buffers = {passing("a", 512, {{0, 1}}), passing("b", 512, {{2, 3}}), kept("sum")};
  program.instructions = {on(Lane::compute, {}, {0}), on(Lane::reduce, {0}, {2}), on(Lane::gather, {}, {1}),
                          on(Lane::compute, {1}, {})};
  EXPECT_EQ(linked(program), (std::vector<Waits>{{}, {0}, {}, {2}}));
  const MemoryPlan plan = plan_memory({&program, 1});
  ASSERT_EQ(plan.offset(0, 0), plan.offset(0, 1));
  EXPECT_EQ(linked(program, &plan), (std::vector<Waits>{{}, {0}, {1}, {2}}));
}

TEST(Link, FollowsEachPartOfARangeToItsLastOccupant) {
  // [0, 768): first "low" and "high" side by side, then "whole" over both; "middle" took part of "high"
  // between.
  Program program;
  program.buffers = {passing("low", 256, {{0, 0}}), passing("high", 512, {{1, 1}}),
                     passing("middle", 256, {{2, 2}}), passing("whole", 768, {{3, 3}})};
  program.instructions = {on(Lane::gather, {}, {0}), on(Lane::reduce, {}, {1}), on(Lane::upload, {}, {2}),
                          on(Lane::compute, {}, {3})};
  MemoryPlan plan;
  plan.offsets = {{{0}, {256}, {512}, {0}}};
  EXPECT_EQ(linked(program, &plan), (std::vector<Waits>{{}, {}, {1}, {0, 2}}));
  plan.offsets = {{{0}, {256}, {768}, {0}}};  // "middle" out of the way
  EXPECT_EQ(linked(program, &plan), (std::vector<Waits>{{}, {}, {}, {0, 1}}));
}

TEST(Link, CountsGuardsAsTheirBuffers) {
  Program program;
  program.buffers = {passing("a", 256, {{0, 0}}), passing("b", 256, {{1, 1}})};
  program.instructions = {on(Lane::gather, {}, {0}), on(Lane::compute, {}, {1})};
  MemoryPlan plan;
  plan.offsets = {{{4096}, {8192}}};  // 3840 bytes apart
  EXPECT_EQ(linked(program, &plan), (std::vector<Waits>{{}, {}}));
  plan.guard_bytes = 4096;
  EXPECT_EQ(linked(program, &plan), (std::vector<Waits>{{}, {0}}));
}

TEST(Link, TreatsLivesOfOneBufferAsOccupantsOfOneAddress) {
  Program program;
  program.buffers = {passing("gathered", 256, {{0, 1}, {2, 3}})};
  program.instructions = {on(Lane::gather, {}, {0}), on(Lane::compute, {0}, {}), on(Lane::gather, {}, {0}),
                          on(Lane::compute, {0}, {})};
  const std::vector<Waits> expected = {{}, {0}, {1}, {2}};
  EXPECT_EQ(linked(program), expected);
  const MemoryPlan plan = plan_memory({&program, 1});
  EXPECT_EQ(linked(program, &plan), expected);
}

TEST(Link, KeepsSpacesApart) {
  Program program;
  program.buffers = {passing("a", 256, {{0, 0}}), passing("b", 256, {{1, 1}})};
  program.buffers[1].space = Space::host;
  program.instructions = {on(Lane::compute, {}, {0}), on(Lane::download, {}, {1})};
  const MemoryPlan plan = plan_memory({&program, 1});
  ASSERT_EQ(plan.offset(0, 0), plan.offset(0, 1));
  EXPECT_EQ(linked(program, &plan), (std::vector<Waits>{{}, {}}));
}

TEST(Link, RefusesAPlanOfAnotherProgram) {
  Program program;
  program.buffers = {kept("x")};
  program.instructions = {on(Lane::compute, {}, {0})};
  const MemoryPlan plan = plan_memory({&program, 1});
  EXPECT_THROW(link(program, &plan, 1), UsageError);
  EXPECT_THROW(link(program, &plan, -1), UsageError);
  program.buffers.push_back(kept("y"));
  EXPECT_THROW(link(program, &plan, 0), UsageError);
  program.instructions[0].operands = testing::accesses({2}, {});
  EXPECT_THROW(link(program, nullptr, 0), UsageError);
}

using Offsets = IdVector<std::vector<std::int64_t>>;  // [buffer][lifetime]

// What must be ordered, found access by access, and what is, found by closing the relation; nothing of
// link's.
class Order {
 public:
  Order(const Program& program, const Offsets* offsets) : program_(program) {
    for (InstructionId i = 0; i < count(); ++i) {
      for (InstructionId j = i + 1; j < count(); ++j) {
        if (must_follow(i, j, offsets)) needed_.push_back({i, j});
      }
    }
  }

  // Whether lane order and waits order all that must be, with wait `without` of instruction `of` left out.
  bool holds(InstructionId of = -1, InstructionId without = -1) const {
    IdVector<std::uint64_t> before(count(), 0);
    std::vector<InstructionId> last_of_lane(kLanes, -1);
    for (InstructionId i = 0; i < count(); ++i) {
      const Instruction& instruction = at(i);
      const auto follow = [&](InstructionId earlier) {
        if (earlier < 0) return;
        before[i] |= before[earlier] | (std::uint64_t{1} << earlier);
      };
      follow(last_of_lane[static_cast<std::size_t>(instruction.lane)]);
      last_of_lane[static_cast<std::size_t>(instruction.lane)] = i;
      for (InstructionId wait : instruction.waits) {
        if (i != of || wait != without) follow(wait);
      }
    }
    for (const auto& [i, j] : needed_) {
      if ((before[j] >> i & 1) == 0) return false;
    }
    return true;
  }

 private:
  InstructionId count() const { return program_.instructions.count(); }
  const Instruction& at(InstructionId id) const { return program_.instructions[id]; }

  // Lifetimes of one buffer are as separate as buffers, once they have addresses.
  bool one_history(BufferId id, InstructionId i, InstructionId j) const {
    const Buffer& buffer = program_.buffers[id];
    return buffer.bytes == 0 || lifetime_at(buffer, i) == lifetime_at(buffer, j);
  }

  bool must_follow(InstructionId i, InstructionId j, const Offsets* offsets) const {
    const auto accesses = [](const Instruction& instruction) {
      std::vector<std::pair<BufferId, bool>> all;  // and whether it writes
      for (BufferId id : instruction.reads()) all.push_back({id, false});
      for (BufferId id : instruction.writes()) all.push_back({id, true});
      return all;
    };
    for (const auto& [a, a_writes] : accesses(at(i))) {
      for (const auto& [b, b_writes] : accesses(at(j))) {
        if (a == b && (a_writes || b_writes) && (offsets == nullptr || one_history(a, i, j))) return true;
        if (offsets != nullptr && share_address(a, i, b, j, *offsets)) return true;
      }
    }
    return false;
  }

  // Every access of an earlier lifetime comes before every access of a later one at the same bytes.
  bool share_address(BufferId a, InstructionId i, BufferId b, InstructionId j, const Offsets& offsets) const {
    const Buffer& first = program_.buffers[a];
    const Buffer& second = program_.buffers[b];
    if (first.persistent || second.persistent || first.space != second.space) return false;
    const int life = lifetime_at(first, i), other = lifetime_at(second, j);
    if (a == b && life == other) return false;
    const std::int64_t begin = offsets[a].at(static_cast<std::size_t>(life)),
                       start = offsets[b].at(static_cast<std::size_t>(other));
    return begin < start + second.bytes && start < begin + first.bytes;
  }

  const Program& program_;
  std::vector<std::pair<InstructionId, InstructionId>> needed_;
};

void expect_exact(const Program& program, const Offsets* offsets) {
  const Order order(program, offsets);
  ASSERT_TRUE(order.holds());
  for (InstructionId id = 0; id < program.instructions.count(); ++id) {
    const Instruction& instruction = program.instructions[id];
    ASSERT_TRUE(std::is_sorted(instruction.waits.begin(), instruction.waits.end()));
    for (const InstructionId wait : instruction.waits) {
      ASSERT_LT(wait, id);
      ASSERT_NE(program.instructions[wait].lane, instruction.lane);
      ASSERT_FALSE(order.holds(id, wait)) << "#" << id << " need not wait for #" << wait;
    }
  }
}

TEST(Link, OrdersAllThatConflictsByTheFewestWaits) {
  RandomPrograms random(1);
  std::size_t waits = 0, more_waits = 0;
  for (unsigned round = 0; round < 500; ++round) {
    SCOPED_TRACE(round);
    Program program = random.make("buffer", round);
    link(program, nullptr, 0);
    expect_exact(program, nullptr);
    for (const Instruction& instruction : program.instructions) waits += instruction.waits.size();
    const MemoryPlan plan = plan_memory({&program, 1});
    link(program, &plan, 0);
    expect_exact(program, &plan.offsets[0]);
    for (const Instruction& instruction : program.instructions) more_waits += instruction.waits.size();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(waits, 1000u);
  EXPECT_GT(more_waits, waits);  // the programs did share addresses across lanes
}

TEST(Link, DoesNotDependOnTheWaitsBefore) {
  RandomPrograms random(2);
  for (unsigned round = 0; round < 20; ++round) {
    Program program = random.make("buffer", round);
    const MemoryPlan plan = plan_memory({&program, 1});
    const std::vector<Waits> bare = linked(program), planned = linked(program, &plan);
    link(program, &plan, 0);
    EXPECT_EQ(linked(program, &plan), planned);
    EXPECT_EQ(linked(program), bare);
  }
}

}  // namespace
}  // namespace tessera
