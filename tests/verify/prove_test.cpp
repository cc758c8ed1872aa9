// Programs that are built are proved to mean what one rank would compute; programs that are broken in one
// place are not. TESSERA_SEEDS=FROM:COUNT draws other strategies than the few of every test run.
#include <gtest/gtest.h>

#include <functional>
#include <iostream>
#include <map>
#include <optional>

#include "tessera/link.h"
#include "tessera/numeric_differences.h"
#include "tests/program/accesses.h"
#include "tests/program/random_world.h"
#include "tests/program/sanitized.h"
#include "tests/program/seeds.h"

namespace tessera::testing {
namespace {

Seeds drawn() { return Seeds(kSanitized ? 20 : 60); }

// Calls visit(case, world, words) for each draw that can be built.
template <class Visit>
std::uint64_t each_world(const Seeds& seeds, const Visit& visit) {
  std::uint64_t ran = 0;
  for (std::uint64_t seed = seeds.from; seed < seeds.from + seeds.count; ++seed) {
    const Case of = draw_case(seed);
    std::optional<World> world;
    try {
      world.emplace(of);
    } catch (const UnsupportedError&) {
      continue;
    }
    SCOPED_TRACE(in_words(of, seed));
    visit(seed, *world);
    ++ran;
    if (::testing::Test::HasFailure()) return ran;
  }
  return ran;
}

TEST(Prove, WhatIsBuiltMeansWhatOneRankComputes) {
  const std::uint64_t ran = each_world(drawn(), [](std::uint64_t, const World& world) {
    for (std::size_t index = 0; index < world.count(); ++index) {
      const VerifyReport report = world.proved(index);
      EXPECT_TRUE(report.ok()) << "program " << index << "\n" << report.to_string();
    }
  });
  EXPECT_GT(ran, drawn().count / 2);
}

// One change in one program. False where the program has no place for it.
using Mutation = std::function<bool(Program&, Draws&)>;

// A random one of the places that `fits` accepts.
std::optional<InstructionId> place(const Program& program, Draws& draws,
                                   const std::function<bool(const Instruction&)>& fits) {
  std::vector<InstructionId> all;
  for (InstructionId id = 0; id < program.instructions.count(); ++id)
    if (fits(program.at(id))) all.push_back(id);
  if (all.empty()) return std::nullopt;
  return draws.among(all);
}

bool is_sum(const Instruction& of) { return of.op == Opcode::reduce_scatter || of.op == Opcode::accumulate; }

bool is_exchange(const Instruction& of) { return of.lane == Lane::exchange; }
bool exchanges_a_piece(const Instruction& of) {
  return is_exchange(of) && of.operand(Role::from).region.is_piece();
}

void drop(Program& program, InstructionId id) {
  program.instructions.erase(program.instructions.begin() + id);
  for (Buffer& buffer : program.buffers)
    for (Lifetime& life : buffer.lifetimes) {
      life.first -= life.first > id ? 1 : 0;
      life.last -= life.last >= id && life.last > life.first ? 1 : 0;
    }
  for (Instruction& instruction : program.instructions) instruction.waits.clear();
}

// Ahead of `at`; what lives at the instruction before lives here, too.
void insert(Program& program, InstructionId at, const Instruction& more) {
  program.instructions.insert(program.instructions.begin() + at, more);
  for (Buffer& buffer : program.buffers)
    for (Lifetime& life : buffer.lifetimes) {
      life.first += life.first >= at ? 1 : 0;
      life.last += life.last >= at - 1 ? 1 : 0;
    }
  for (Instruction& instruction : program.instructions) instruction.waits.clear();
}

const std::map<std::string, Mutation>& mutations() {
  static const std::map<std::string, Mutation> all = {
      {"a sum starts afresh, or goes on",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, is_sum);
         if (!id) return false;
         Access& access = operand_of(program.instructions[*id], Role::to).access;
         access = access == Access::add ? Access::write : Access::add;
         return true;
       }},
      {"a microbatch is reduced never",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) { return is_sum(of); });
         if (!id) return false;
         drop(program, *id);
         return true;
       }},
      {"a microbatch is reduced twice",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) {
           return is_sum(of) && of.operand(Role::to).access == Access::add;
         });
         if (!id) return false;
         const Instruction twice = program.at(*id);
         insert(program, *id + 1, twice);
         return true;
       }},
      {"another rank's part is read",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) {
           return of.op == Opcode::all_gather && of.buffer(Role::from) == of.buffer(Role::to);
         });
         if (!id) return false;
         drop(program, *id);
         return true;
       }},
      {"an update comes from a gradient that is not reduced",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) {
           return of.op == Opcode::reduce_scatter && of.find(Role::squares) == nullptr;
         });
         if (!id) return false;
         drop(program, *id);
         return true;
       }},
      {"a gather comes before the update that it should follow",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [&](const Instruction& of) {
           return of.op == Opcode::all_gather && of.when >= 0;
         });
         if (!id) return false;
         const FlatId flat = program.flat_of(program.at(*id));
         for (InstructionId before = *id - 1; before >= 0; --before)
           if (program.at(before).op == Opcode::update && program.flat_of(program.at(before)) == flat) {
             std::swap(program.instructions[before], program.instructions[*id]);
             return true;
           }
         return false;
       }},
      {"a use reads parameters that are not gathered",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) {
           return of.op == Opcode::all_gather && of.buffer(Role::from) != of.buffer(Role::to);
         });
         if (!id) return false;
         drop(program, *id);
         return true;
       }},
      {"a use reads another microbatch's activation",
       [](Program& program, Draws& draws) {
         if (program.microbatches < 2) return false;
         const auto id = place(program, draws, [](const Instruction& of) {
           return of.op == Opcode::use && of.pass != Pass::forward &&
                  (of.find(Role::input) || of.find(Role::value));
         });
         if (!id) return false;
         Instruction& use = program.instructions[*id];
         use.microbatch = (use.microbatch + 1) % program.microbatches;
         return true;
       }},
      {"a part reads a value that another should have written",
       [](Program& program, Draws& draws) {
         const auto reads_value = [](const Operand& operand) {
           return operand.role == Role::value && reads(operand.access);
         };
         const auto id = place(program, draws, [&](const Instruction& of) {
           return of.op == Opcode::use && std::ranges::any_of(of.operands, reads_value);
         });
         if (!id) return false;
         std::vector<Operand*> values;
         for (Operand& operand : program.instructions[*id].operands)
           if (reads_value(operand)) values.push_back(&operand);
         ++draws.among(values)->region.value;
         return true;
       }},
      {"a part reads a value that is not summed over tensor ranks, or not gathered",
       [](Program& program, Draws& draws) {
         const auto exchanged = [&](const Instruction& of, const Operand& operand) -> const ExchangedValue* {
           if (of.op != Opcode::use || operand.role != Role::value) return nullptr;
           for (const ExchangedValue& value : program.units[of.unit].exchanged)
             if (value.value == operand.region.value) return &value;
           return nullptr;
         };
         const auto id = place(program, draws, [&](const Instruction& of) {
           return std::ranges::any_of(of.operands,
                                      [&](const Operand& operand) { return exchanged(of, operand); });
         });
         if (!id) return false;
         Instruction& use = program.instructions[*id];
         for (Operand& operand : use.operands)
           if (const ExchangedValue* value = exchanged(use, operand))
             for (InstructionId before = *id; before >= 0; --before)
               if (const Instruction& made = program.at(before);
                   made.lane == Lane::exchange && made.unit == use.unit &&
                   made.operand(Role::to).region.value == value->value) {
                 operand.buffer = made.buffer(Role::from);
                 return true;
               }
         return false;
       }},
      {"an exchange is left out",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, is_exchange);
         if (!id) return false;
         drop(program, *id);
         return true;
       }},
      {"an exchange takes another value",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, is_exchange);
         if (!id) return false;
         Operand& from = operand_of(program.instructions[*id], Role::from);
         for (InstructionId before = *id - 1; before >= 0; --before)
           for (const Operand& other : program.at(before).operands)
             if (other.role == Role::value && program.at(before).unit == program.at(*id).unit &&
                 other.buffer != from.buffer &&
                 program.buffers[other.buffer].bytes == program.buffers[from.buffer].bytes) {
               from = {.role = Role::from, .buffer = other.buffer, .region = other.region, .type = from.type};
               return true;
             }
         return false;
       }},
      {"an exchange takes another piece of the value",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, exchanges_a_piece);
         if (!id) return false;
         Operand& operand = operand_of(program.instructions[*id], draws.chance(50) ? Role::from : Role::to);
         const std::vector<ValuePiece>& pieces = program.units[program.at(*id).unit].pieces;
         const ValuePiece own = *program.units[program.at(*id).unit].piece(operand.region.value);
         for (const ValuePiece& other : pieces)
           if (other.of == own.of && other.value != own.value) {
             operand.region = Region::of_value(other.value, other.begin, other.end);
             return true;
           }
         return false;
       }},
      {"one piece is exchanged twice, and another never",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, exchanges_a_piece);
         if (!id) return false;
         Instruction& twice = program.instructions[*id];
         for (InstructionId other = 0; other < program.instructions.count(); ++other) {
           const Instruction& one = program.at(other);
           if (other == *id || one.lane != Lane::exchange || one.unit != twice.unit ||
               one.microbatch != twice.microbatch || one.buffer(Role::to) != twice.buffer(Role::to))
             continue;
           twice.operands = one.operands;
           return true;
         }
         return false;
       }},
      {"a sum over tensor ranks is a gather, or the other way round",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, is_exchange);
         if (!id) return false;
         Opcode& op = program.instructions[*id].op;
         op = op == Opcode::all_gather ? Opcode::reduce_scatter : Opcode::all_gather;
         return true;
       }},
      {"a copied parameter's gradient is not summed over tensor ranks",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [&](const Instruction& of) {
           return of.op == Opcode::reduce_scatter && program.flat_of(of) >= 0 &&
                  program.channels[of.channel].axis == Axis::tensor;
         });
         if (!id) return false;
         drop(program, *id);
         return true;
       }},
      {"a copied parameter is counted by each tensor rank in the norm",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) {
           return of.op == Opcode::square_sum && of.operand(Role::from).region.spread == kPiece;
         });
         if (!id) return false;
         operand_of(program.instructions[*id], Role::from).region.spread = kSlice;
         return true;
       }},
      {"a part of a backward is left out",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) {
           return of.op == Opcode::use && of.pass == Pass::backward && of.find(Role::gradient) != nullptr;
         });
         if (!id) return false;
         drop(program, *id);
         return true;
       }},
      {"a use writes over a gradient that it should add to, or adds to nothing",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) {
           return of.op == Opcode::use && of.edge == UseEdge::whole && of.find(Role::gradient) != nullptr;
         });
         if (!id) return false;
         std::vector<Operand*> gradients;
         for (Operand& operand : program.instructions[*id].operands)
           if (operand.role == Role::gradient) gradients.push_back(&operand);
         Access& access = draws.among(gradients)->access;
         access = access == Access::add ? Access::write : Access::add;
         return true;
       }},
      {"a tied sum is forgotten",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) {
           return of.op == Opcode::accumulate && of.microbatch < 0;
         });
         if (!id) return false;
         drop(program, *id);
         return true;
       }},
      {"a slice is counted twice in the norm, or never",
       [](Program& program, Draws& draws) {
         const auto id =
             place(program, draws, [](const Instruction& of) { return of.find(Role::squares) != nullptr; });
         if (!id) return false;
         if (draws.chance(50) || program.at(*id).op == Opcode::square_sum) {
           program.instructions[*id].operands.erase(
               std::ranges::find(program.instructions[*id].operands, Role::squares, &Operand::role));
           if (program.at(*id).op == Opcode::square_sum) drop(program, *id);
           return true;
         }
         const Instruction& of = program.at(*id);
         Instruction again{
             .op = Opcode::square_sum, .lane = Lane::reduce, .unit = of.unit, .operands = {}, .waits = {}};
         again.operands = {of.operand(Role::to), of.operand(Role::squares)};
         again.operands[0].role = Role::from;
         again.operands[0].access = Access::read;
         insert(program, *id + 1, again);
         return true;
       }},
      {"a message goes to a wrong peer",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) { return of.op == Opcode::send; });
         if (!id) return false;
         ++program.instructions[*id].peer;
         return true;
       }},
      {"a copy moves another buffer of the flat",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [&](const Instruction& of) {
           return of.op == Opcode::copy && program.flat_of(of) >= 0;
         });
         if (!id) return false;
         Operand& from = operand_of(program.instructions[*id], Role::from);
         std::vector<BufferId> others;
         for (BufferId other = 0; other < program.buffers.count(); ++other) {
           const Buffer& a = program.buffers[other];
           const Buffer& b = program.buffers[from.buffer];
           if (other != from.buffer && a.flat == b.flat && a.type == b.type && a.space == b.space &&
               a.spread == b.spread && other != program.at(*id).buffer(Role::to) && a.role != b.role)
             others.push_back(other);
         }
         if (others.empty()) return false;
         from.buffer = draws.among(others);
         return true;
       }},
      {"gaps are not zeroed",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) { return of.op == Opcode::zero; });
         if (!id) return false;
         drop(program, *id);
         return true;
       }},
      {"a sum is of a rank more, or of one fewer",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) { return !of.contributors.all(); });
         if (!id) return false;
         program.instructions[*id].contributors.count += draws.chance(50) ? 1 : -1;
         return true;
       }},
      {"a sum of some ranks is of all",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) { return !of.contributors.all(); });
         if (!id) return false;
         program.instructions[*id].contributors = {};
         return true;
       }},
      {"a sum of all ranks is of some",
       [](Program& program, Draws& draws) {
         if (program.last_round_ranks == 0) return false;
         const auto id = place(program, draws, [](const Instruction& of) {
           return of.op == Opcode::reduce_scatter && of.contributors.all();
         });
         if (!id) return false;
         program.instructions[*id].contributors.count = program.last_round_ranks;
         return true;
       }},
      {"a rank that has a microbatch gives nothing to its sum",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) {
           return !of.contributors.all() && of.find(Role::from) != nullptr;
         });
         if (!id) return false;
         Instruction& sum = program.instructions[*id];
         sum.wire = sum.operand(Role::from).type;
         std::erase_if(sum.operands, [](const Operand& operand) { return operand.role == Role::from; });
         return true;
       }},
      {"a rank that rests gives what it has left to the sum",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) {
           return !of.contributors.all() && of.find(Role::from) == nullptr;
         });
         if (!id) return false;
         Instruction& sum = program.instructions[*id];
         for (BufferId other = 0; other < program.buffers.count(); ++other)
           if (program.buffers[other].role == BufferRole::gradient &&
               program.buffers[other].flat == program.flat_of(sum)) {
             sum.operands.push_back(
                 {.role = Role::from, .buffer = other, .region = Region::part_of(kWhole), .type = sum.wire});
             sum.wire = DType::fp32;
             return true;
           }
         return false;
       }},
      {"contributions have another type for a rank that gives none",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) {
           return !of.contributors.all() && of.find(Role::from) == nullptr;
         });
         if (!id) return false;
         program.instructions[*id].wire = program.at(*id).wire == DType::fp32 ? DType::bf16 : DType::fp32;
         return true;
       }},
      {"a guard is dropped",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) { return of.when >= 0; });
         if (!id) return false;
         program.instructions[*id].when = -1;
         return true;
       }},
      {"an update takes other elements of its gradient than of its states",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) { return of.op == Opcode::update; });
         if (!id) return false;
         Region& region = operand_of(program.instructions[*id], Role::gradient).region;
         region.spread = region.spread == kSlice ? kShard : kSlice;
         return true;
       }},
      {"an update is of one parameter only",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) { return of.op == Opcode::update; });
         if (!id) return false;
         for (Operand& operand : program.instructions[*id].operands)
           operand.region = Region::of_parameter(draws.pick(0, 1));
         return true;
       }},
      {"an update is left out",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) { return of.op == Opcode::update; });
         if (!id) return false;
         drop(program, *id);
         return true;
       }},
      {"a use reads a part of its parameters",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) {
           return of.op == Opcode::use && of.find(Role::parameters) != nullptr;
         });
         if (!id) return false;
         operand_of(program.instructions[*id], Role::parameters).region = Region::part_of(kShard);
         return true;
       }},
      {"a use leaves a gradient out",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) {
           return of.op == Opcode::use && of.find(Role::gradient) != nullptr;
         });
         if (!id) return false;
         std::vector<Operand>& operands = program.instructions[*id].operands;
         operands.erase(std::ranges::find(operands, Role::gradient, &Operand::role));
         return true;
       }},
      {"what peers wait for depends on a decision",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) {
           return of.op == Opcode::send || of.op == Opcode::receive || of.op == Opcode::reduce_scalars;
         });
         if (!id) return false;
         for (BufferId other = 0; other < program.buffers.count(); ++other)
           if (is_decision(program.buffers[other].role)) program.instructions[*id].when = other;
         return program.at(*id).when >= 0;
       }},
      {"squares are added to another's sum",
       [](Program& program, Draws& draws) {
         const auto id =
             place(program, draws, [](const Instruction& of) { return of.find(Role::squares) != nullptr; });
         if (!id) return false;
         std::vector<Operand*> sums;
         for (Operand& operand : program.instructions[*id].operands)
           if (operand.role == Role::squares) sums.push_back(&operand);
         ParameterId& parameter = draws.among(sums)->region.parameter;
         parameter = parameter == kAllParameters ? 0 : kAllParameters;
         return true;
       }},
      {"a step is never decided",
       [](Program& program, Draws& draws) {
         const auto id =
             place(program, draws, [](const Instruction& of) { return of.op == Opcode::reduce_scalars; });
         if (!id) return false;
         drop(program, *id);
         return true;
       }},
      {"a buffer has too few bytes",
       [](Program& program, Draws& draws) {
         std::vector<BufferId> of_flats;
         for (BufferId id = 0; id < program.buffers.count(); ++id)
           if (program.buffers[id].flat >= 0) of_flats.push_back(id);
         if (of_flats.empty()) return false;
         program.buffers[draws.among(of_flats)].bytes -= 4;
         return true;
       }},
      {"an update depends on another decision",
       [](Program& program, Draws& draws) {
         const auto id = place(program, draws, [](const Instruction& of) { return of.op == Opcode::update; });
         if (!id) return false;
         std::vector<BufferId> others;
         for (BufferId other = 0; other < program.buffers.count(); ++other)
           if (is_decision(program.buffers[other].role) && other != program.at(*id).when)
             others.push_back(other);
         if (others.empty()) return false;
         program.instructions[*id].when = draws.among(others);
         return true;
       }},
  };
  return all;
}

struct Count {
  std::uint64_t tried = 0, found = 0, equivalent = 0;
};

// A rank's program is that of ranks that rest in the last round, and it has a microbatch there, or the other
// way round.
TEST(Prove, TheProgramOfOtherRanksIsFound) {
  std::uint64_t tried = 0;
  Seeds some = drawn();
  some.count = (some.count + 3) / 4;
  each_world(some, [&](std::uint64_t seed, const World& world) {
    Draws draws(seed * 104729);
    const auto ranks = static_cast<int>(world.of_rank.size());
    for (std::size_t index = 0; index < world.count(); ++index) {
      const std::vector<Program> programs = world.programs(index);
      WorldPrograms swapped{.mesh = world.mesh, .programs = programs, .program_of_rank = world.of_rank};
      const int rank = draws.pick(0, ranks - 1);
      const auto pipeline = static_cast<std::size_t>(world.mesh.pipeline);
      int& of = swapped.program_of_rank[rank];
      const auto is = static_cast<std::size_t>(of);
      const std::size_t other = (is + pipeline) % programs.size();
      const bool sums = std::ranges::any_of(programs[is].instructions, [](const Instruction& instruction) {
        return instruction.op == Opcode::reduce_scatter;
      });
      if (programs[is].rests == programs[other].rests || !sums) continue;
      of = static_cast<int>(other);
      ++tried;
      EXPECT_FALSE(verify(swapped).ok()) << "rank " << rank << ", program " << index;
    }
  });
  EXPECT_TRUE(tried > 0 || some.count < 5);
}

// What keeps its meaning although it is not what was built: a guard on an instruction that changes nothing
// where the answer is no, say. Equal final terms are what prove() compares, so no finding means the same.
TEST(Prove, WhatIsBrokenInOnePlaceIsFound) {
  std::map<std::string, Count> counts;
  each_world(drawn(), [&](std::uint64_t seed, const World& world) {
    Draws draws(seed * 7919);
    for (const auto& [name, mutation] : mutations()) {
      const auto index = static_cast<std::size_t>(draws.pick(0, static_cast<int>(world.count()) - 1));
      std::vector<Program> programs = world.programs(index);
      Program& mutant =
          programs[static_cast<std::size_t>(draws.pick(0, static_cast<int>(programs.size()) - 1))];
      if (!mutation(mutant, draws)) continue;
      Count& count = counts[name];
      ++count.tried;
      const WorldPrograms broken{.mesh = world.mesh, .programs = programs, .program_of_rank = world.of_rank};
      const bool found = !prove(broken, world.layout).ok() || !verify(broken).ok();
      count.found += found ? 1 : 0;
      if (!found) ++count.equivalent;
    }
  });
  std::uint64_t tried = 0, equivalent = 0;
  for (const auto& [name, count] : counts) {
    std::cout << name << ": " << count.found << " of " << count.tried << " found\n";
    tried += count.tried;
    equivalent += count.equivalent;
  }
  EXPECT_EQ(counts.size(), mutations().size());
  EXPECT_LE(equivalent * 20, tried);
}

}  // namespace
}  // namespace tessera::testing
