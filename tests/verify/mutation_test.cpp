// Takes programs that are proved sound, breaks them in one place, and demands that the verifier says where.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>

#include "src/program/opcodes.h"
#include "tessera/link.h"
#include "tessera/prove.h"
#include "tests/program/hand_made.h"
#include "tests/program/sanitized.h"
#include "tests/program/small_models.h"

namespace tessera {
namespace {

using testing::has;

struct Choice {
  int world, stage, prefetch, resident_units, microbatches;
  ReduceWhen reduce;
  Recompute recompute;
  bool tied;
  StepKind kind;
};

std::string words(const Choice& c) {
  return "world " + std::to_string(c.world) + ", stage " + std::to_string(c.stage) + ", prefetch " +
         std::to_string(c.prefetch) + ", resident " + std::to_string(c.resident_units) + ", microbatches " +
         std::to_string(c.microbatches) + (c.reduce == ReduceWhen::each ? ", each" : ", last") +
         (c.recompute == Recompute::full ? ", recompute" : "") + (c.tied ? ", tied" : "") +
         (c.kind == StepKind::evaluate ? ", evaluate" : "");
}

std::vector<Choice> all_choices() {
  std::vector<Choice> choices;
  for (int world : {1, 2})
    for (int stage = 0; stage <= 3; ++stage)
      for (int prefetch = 0; prefetch <= 2; ++prefetch)
        for (int resident : {0, 2})
          for (int microbatches : {1, 3})
            for (ReduceWhen reduce : {ReduceWhen::each, ReduceWhen::last})
              for (Recompute recompute : {Recompute::none, Recompute::full})
                for (bool tied : {false, true})
                  for (StepKind kind : {StepKind::train, StepKind::evaluate})
                    if (resident == 0 || stage == 3)
                      choices.push_back(
                          {world, stage, prefetch, resident, microbatches, reduce, recompute, tied, kind});
  return choices;
}

Program built(const Choice& c) {
  const std::vector<UnitSpec> units = c.tied ? testing::tied_model(3) : testing::chain(5, 100);
  return build_step(Layout(units, c.world), Mesh{.shard = c.world},
                    {.kind = c.kind,
                     .microbatches = c.microbatches,
                     .strategy = {.placements = Placements::of_stage(c.stage),
                                  .reduce = c.reduce,
                                  .prefetch = c.prefetch,
                                  .recompute = c.recompute,
                                  .resident_units = c.resident_units},
                     .activations = testing::activations(static_cast<int>(units.size())),
                     .order = {}});
}

VerifyReport verified(const Program& program, const MemoryPlan* plan) {
  const PlannedProgram planned{.plan = plan, .index = 0};
  return verify({.mesh = {}, .programs = {&program, 1}}, {&planned, 1});
}

// Every `stride`th of all choices; fewer under a sanitizer. An odd stride meets every pair of settings, as
// the settings that vary fastest have two values each.
std::vector<Choice> some_choices(std::size_t stride) {
  if (testing::kSanitized) stride *= 7;
  const std::vector<Choice> all = all_choices();
  std::vector<Choice> some;
  for (std::size_t k = 0; k < all.size(); k += stride) some.push_back(all[k]);
  return some;
}

// Calls check(program, plan) for the program as it was built, with a null plan, and linked to its plan.
template <class Check>
void on_program(const Program& program, Check check) {
  check(program, static_cast<const MemoryPlan*>(nullptr));
  const testing::Planned planned({program});
  check(planned.programs.front(), &planned.plan);
}

template <class Check>
void on_each_program(std::size_t stride, Check check) {
  for (const Choice& choice : some_choices(stride)) {
    SCOPED_TRACE(words(choice));
    on_program(built(choice), check);
    if (::testing::Test::HasFailure()) return;
  }
}

const Instruction& at(const Program& program, InstructionId id) { return program.instructions[id]; }
Instruction& at(Program& program, InstructionId id) { return program.instructions[id]; }
InstructionId count(const Program& program) { return program.instructions.count(); }

TEST(VerifyMutations, BuiltProgramsAreProvedAndHaveNoWaitToSpare) {
  int waits = 0;
  on_each_program(1, [&](const Program& program, const MemoryPlan* plan) {
    const VerifyReport report = verified(program, plan);
    EXPECT_TRUE(report.ok()) << report.to_string();
    for (const Instruction& instruction : program.instructions)
      waits += static_cast<int>(instruction.waits.size());
  });
  EXPECT_GT(waits, testing::kSanitized ? 1000 : 10000) << "the programs are too simple to tell anything";
}

void delete_each_wait(const Program& program, const MemoryPlan* plan) {
  Program mutant = program;
  for (InstructionId id = 0; id < count(program); ++id) {
    for (InstructionId wait : at(program, id).waits) {
      std::erase(at(mutant, id).waits, wait);
      const VerifyReport report = verified(mutant, plan);
      EXPECT_TRUE(has(report, Fault::unordered_access, {wait, id}))
          << describe(program, id) << " no longer waits for " << describe(program, wait) << "\n"
          << report.to_string();
      at(mutant, id).waits = at(program, id).waits;
    }
  }
}

TEST(VerifyMutations, DeletingAnyWaitIsFound) { on_each_program(1, delete_each_wait); }

TEST(VerifyMutations, ChoicesByUnitAreProvedToo) {
  using enum Recompute;
  using enum Space;
  const std::vector<ActivationChoice> choices[] = {
      {{selective, device}, {none, device}, {full, device}, {selective, device}, {full, device}},
      {{none, host}, {selective, host}, {full, host}, {none, device}, {selective, host}},
      {{full, host}, {none, host}, {none, host}, {selective, host}, {none, device}}};
  for (const int stage : {0, 3})
    for (const int microbatches : {1, 3})
      for (const std::vector<ActivationChoice>& units : choices) {
        const StepSpec spec{.microbatches = microbatches,
                            .strategy = {.placements = Placements::of_stage(stage),
                                         .prefetch = microbatches - 1,
                                         .unit_activations = units},
                            .activations = testing::activations(5),
                            .order = {}};
        on_program(build_step(Layout(testing::chain(5, 100), 2), {.shard = 2}, spec),
                   [](const Program& program, const MemoryPlan* plan) {
                     const VerifyReport report = verified(program, plan);
                     EXPECT_TRUE(report.ok()) << report.to_string();
                     delete_each_wait(program, plan);
                   });
      }
}

// A trainer's own order: uses inside uses, a unit used twice, and a backward that is not the reverse.
TEST(VerifyMutations, OrdersOfTheirOwnAreProvedToo) {
  using enum Pass;
  using enum UseEdge;
  const std::vector<Use> order = {
      {0, forward, open},  {1, forward},         {2, forward, open}, {1, forward},        {2, forward, close},
      {0, forward, close}, {3, forward},         {3, backward},      {0, backward, open}, {2, backward, open},
      {1, backward},       {2, backward, close}, {1, backward},      {0, backward, close}};
  for (int stage = 0; stage <= 3; ++stage) {
    for (int prefetch = 0; prefetch <= 3; ++prefetch) {
      for (ReduceWhen reduce : {ReduceWhen::each, ReduceWhen::last}) {
        SCOPED_TRACE("stage " + std::to_string(stage) + ", prefetch " + std::to_string(prefetch));
        const Program program = build_step(
            Layout(testing::chain(4, 200), 2), {.shard = 2},
            {.microbatches = 2,
             .strategy = {.placements = Placements::of_stage(stage), .reduce = reduce, .prefetch = prefetch},
             .activations = {},
             .order = order});
        const VerifyReport meaning =
            prove({.mesh = {.shard = 2}, .programs = {&program, 1}}, Layout(testing::chain(4, 200), 2));
        EXPECT_TRUE(meaning.ok()) << meaning.to_string();
        on_program(program, [](const Program& one, const MemoryPlan* plan) {
          const VerifyReport report = verified(one, plan);
          EXPECT_TRUE(report.ok()) << report.to_string();
          delete_each_wait(one, plan);
        });
      }
    }
  }
}

// A wait for what a wait of the same instruction waits for, or what comes before that on its lane.
TEST(VerifyMutations, AnyWaitThatAnotherImpliesIsFound) {
  on_each_program(13, [](const Program& program, const MemoryPlan* plan) {
    Program mutant = program;
    for (InstructionId id = 0; id < count(program); ++id) {
      std::set<InstructionId> implied;
      for (InstructionId wait : at(program, id).waits) {
        implied.insert(at(program, wait).waits.begin(), at(program, wait).waits.end());
        for (InstructionId prior = wait - 1; prior >= 0 && implied.size() < 4; --prior)
          if (at(program, prior).lane == at(program, wait).lane) implied.insert(prior);
      }
      for (InstructionId prior = id - 1; prior >= 0 && implied.size() < 6; --prior)
        if (at(program, prior).lane == at(program, id).lane) implied.insert(prior);
      for (InstructionId extra : implied) {
        std::vector<InstructionId>& waits = at(mutant, id).waits;
        waits.insert(std::ranges::lower_bound(waits, extra), extra);
        EXPECT_TRUE(has(verified(mutant, plan), Fault::redundant_wait, {extra, id}))
            << describe(program, id) << " waits for " << describe(program, extra) << " too";
        waits = at(program, id).waits;
      }
    }
  });
}

// The first and last access to a buffer within a lifetime.
struct Accessed {
  InstructionId first = -1, last = -1;
};

Accessed accessed(const Program& program, BufferId buffer, const Lifetime& life) {
  Accessed result;
  for (InstructionId id = life.first; id <= life.last; ++id) {
    const Instruction& instruction = at(program, id);
    if (!instruction.touches(buffer)) continue;
    if (result.first < 0) result.first = id;
    result.last = id;
  }
  return result;
}

TEST(VerifyMutations, AnyLifetimeCutShortIsFound) {
  on_each_program(11, [](const Program& program, const MemoryPlan* plan) {
    Program mutant = program;
    for (BufferId buffer = 0; buffer < program.buffers.count(); ++buffer) {
      const std::vector<Lifetime>& lifetimes = program.buffers[buffer].lifetimes;
      std::vector<Lifetime>& mutated = mutant.buffers[buffer].lifetimes;
      for (std::size_t k = 0; k < lifetimes.size(); ++k) {
        const Accessed access = accessed(program, buffer, lifetimes[k]);
        ASSERT_EQ(access.first, lifetimes[k].first) << "a lifetime begins with an access";
        if (access.last > lifetimes[k].first) {
          mutated[k].last = access.last - 1;
          EXPECT_TRUE(has(verified(mutant, plan), Fault::outside_lifetime, {access.last}))
              << "ended before " << describe(program, access.last);
          mutated[k] = {access.first + 1, lifetimes[k].last};
          EXPECT_TRUE(has(verified(mutant, plan), Fault::outside_lifetime, {access.first}))
              << "begun behind " << describe(program, access.first);
        }
        mutated.erase(mutated.begin() + static_cast<std::ptrdiff_t>(k));
        MemoryPlan fitting = plan ? *plan : MemoryPlan{};
        if (plan && lifetimes.size() > 1) {
          std::vector<std::int64_t>& offsets = fitting.offsets[0][buffer];
          offsets.erase(offsets.begin() + static_cast<std::ptrdiff_t>(k));
        }
        EXPECT_TRUE(has(verified(mutant, plan ? &fitting : nullptr), Fault::outside_lifetime, {access.first}))
            << "without the lifetime of " << describe(program, access.first);
        mutated = lifetimes;
      }
    }
  });
}

// An instruction without what it must have says nothing that could be run.
TEST(VerifyMutations, LeavingOutWhatIsTouchedIsFound) {
  int left_out = 0;
  on_each_program(9, [&](const Program& program, const MemoryPlan* plan) {
    Program mutant = program;
    for (InstructionId id = 0; id < count(program); ++id) {
      const Opcode op = at(program, id).op;
      if (op != Opcode::reduce_scatter && op != Opcode::accumulate && op != Opcode::update) continue;
      for (const RoleRow& role : row_of(op).roles) {
        if (role.count != RoleRow::Count::one) continue;
        testing::erase_role(at(mutant, id), role.role);
        ++left_out;
        EXPECT_TRUE(has(verified(mutant, plan), Fault::malformed, {id}))
            << describe(program, id) << " without its " << name_of(role.role);
        at(mutant, id).operands = at(program, id).operands;
      }
    }
  });
  EXPECT_GT(left_out, testing::kSanitized ? 10 : 100);
}

TEST(VerifyMutations, AnyLifetimeThatNobodyWritesFirstIsFound) {
  on_each_program(9, [](const Program& program, const MemoryPlan* plan) {
    Program mutant = program;
    for (BufferId buffer = 0; buffer < program.buffers.count(); ++buffer) {
      for (const Lifetime& life : program.buffers[buffer].lifetimes) {
        Instruction& first = at(mutant, life.first);
        bool only_written = false;  // the role has no other access
        for (Operand& operand : first.operands) {
          if (operand.buffer != buffer) continue;
          const AccessSet allowed = row_of(first.op).role(operand.role)->accesses;
          operand.access = (allowed & set_of(Access::add)) != 0      ? Access::add
                           : (allowed & set_of(Access::modify)) != 0 ? Access::modify
                                                                     : Access::read;
          only_written |= (allowed & set_of(operand.access)) == 0;
        }
        const Fault expected = only_written ? Fault::malformed : Fault::read_before_write;
        EXPECT_TRUE(has(verified(mutant, plan), expected, {life.first})) << describe(program, life.first);
        first = at(program, life.first);
      }
    }
  });
}

TEST(VerifyMutations, ReorderedMicrobatchesAreFound) {
  on_each_program(5, [](const Program& program, const MemoryPlan* plan) {
    Program mutant = program;
    for (InstructionId id = 0; id < count(program); ++id) {
      const Instruction& one = at(program, id);
      if (one.op != Opcode::reduce_scatter && one.op != Opcode::accumulate) continue;
      if (one.microbatch < 0) continue;
      Access& access = testing::operand_of(at(mutant, id), Role::to).access;
      access = access == Access::add ? Access::write : Access::add;
      EXPECT_TRUE(has(verified(mutant, plan), Fault::microbatch_order, {id})) << describe(program, id);
      at(mutant, id).operands = one.operands;
      for (InstructionId later = id + 1; later < count(program); ++later) {
        const Instruction& other = at(program, later);
        if (other.op != one.op || program.flat_of(other) != program.flat_of(one) ||
            other.microbatch == one.microbatch)
          continue;
        std::swap(at(mutant, id).microbatch, at(mutant, later).microbatch);
        EXPECT_TRUE(has(verified(mutant, plan), Fault::microbatch_order, {later}))
            << describe(program, id) << " and " << describe(program, later);
        std::swap(at(mutant, id).microbatch, at(mutant, later).microbatch);
      }
    }
  });
}

// What two collectives of a channel must share to be the same to their peers.
bool same_collective(const Instruction& a, const Instruction& b) {
  return a.op == b.op && a.unit == b.unit && a.microbatch == b.microbatch && a.operands == b.operands;
}

TEST(VerifyMutations, AnyTwoCollectivesSwappedOnOneRankAreFound) {
  for (const Choice& choice : some_choices(7)) {
    if (choice.world == 1 || choice.resident_units > 0) continue;
    SCOPED_TRACE(words(choice));
    std::vector<Program> programs = {built(choice), built(choice)};
    const Program& program = programs[0];
    Program& mutant = programs[1];
    std::set<int> channels;
    for (InstructionId id = 0; id < count(program); ++id) {
      if (!is_collective(at(program, id).op)) continue;
      channels.insert(at(program, id).channel);
      for (InstructionId later = id + 1; later < count(program); ++later) {
        if (at(program, later).channel != at(program, id).channel) continue;
        if (same_collective(at(program, id), at(program, later))) continue;
        std::swap(at(mutant, id), at(mutant, later));
        std::swap(at(mutant, id).waits, at(mutant, later).waits);
        const VerifyReport report =
            verify({.mesh = {.shard = choice.world}, .programs = programs, .program_of_rank = {0, 1}});
        EXPECT_TRUE(has(report, Fault::collective_mismatch, {id}))
            << describe(program, id) << " and " << describe(program, later) << "\n"
            << report.to_string();
        at(mutant, id) = at(program, id);
        at(mutant, later) = at(program, later);
      }
    }
    EXPECT_FALSE(channels.empty());
    if (HasFailure()) return;
  }
}

// Without the waits that shared addresses need, some programs race: the plan does reuse across lanes.
TEST(VerifyMutations, ProgramsLinkedWithoutTheirPlanRace) {
  int racing = 0;
  for (const Choice& choice : some_choices(1)) {
    testing::Planned planned({built(choice)});
    const std::uint64_t linked = planned.programs[0].hash();
    link(planned.programs[0], nullptr, 0);
    const VerifyReport report = verified(planned.programs[0], &planned.plan);
    EXPECT_EQ(report.ok(), planned.programs[0].hash() == linked) << words(choice) << "\n"
                                                                 << report.to_string();
    racing += !report.ok();
  }
  EXPECT_GT(racing, 10);
}

}  // namespace
}  // namespace tessera
