#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "src/verify/checks.h"

namespace tessera {
namespace {

void check_shape(const Program& program, int index, const Buffer& buffer, Findings& findings) {
  const auto end = program.instructions.count();
  if (buffer.persistent && !buffer.lifetimes.empty())
    findings.add(Fault::never_released, index, {},
                 fmt::format("'{}' is persistent and yet has lifetimes", buffer.name));
  InstructionId from = 0;
  for (const Lifetime& life : buffer.lifetimes) {
    const std::string span = fmt::format("'{}' lives from #{} to #{}", buffer.name, life.first, life.last);
    if (life.last >= end) {
      findings.add(Fault::never_released, index, {life.first, life.last},
                   fmt::format("{}, but the program ends with #{}", span, end - 1));
    } else if (life.last < life.first || life.first < 0) {
      findings.add(Fault::never_released, index, {life.first, life.last},
                   fmt::format("{}, which is no stretch of instructions", span));
    } else if (life.first < from) {
      findings.add(Fault::never_released, index, {life.first, life.last},
                   fmt::format("{}, but it lives until #{} already", span, from - 1));
    }
    from = std::max(from, life.last + 1);
  }
}

// Follows one buffer's lifetimes along the program.
struct Cursor {
  std::size_t lifetime = 0;  // the first that has not ended
  bool written = false;      // it began with a write
};

class Walk {
 public:
  Walk(const Program& program, int index, Findings& findings)
      : program_(program), index_(index), findings_(findings), cursors_(program.buffers.size()) {}

  void run() {
    for (InstructionId id = 0; id < program_.instructions.count(); ++id) {
      const Instruction& instruction = program_.instructions[id];
      if (instruction.when >= 0) access(id, instruction.when, true);
      // In their order: a use that has a parameter twice writes its gradient, then adds to it.
      for (const Operand& operand : instruction.operands) access(id, operand.buffer, reads(operand.access));
    }
  }

 private:
  void access(InstructionId id, BufferId buffer_id, bool reads) {
    const Buffer& buffer = program_.buffers[buffer_id];
    if (buffer.persistent) return;
    Cursor& cursor = cursors_[buffer_id];
    while (cursor.lifetime < buffer.lifetimes.size() && buffer.lifetimes[cursor.lifetime].last < id) {
      ++cursor.lifetime;
      cursor.written = false;
    }
    const bool inside =
        cursor.lifetime < buffer.lifetimes.size() && buffer.lifetimes[cursor.lifetime].first <= id;
    if (!inside) return outside(id, buffer, cursor, reads);
    if (reads && !cursor.written)
      findings_.add(
          Fault::read_before_write, index_, {id},
          fmt::format("{} reads '{}', which nothing has written since it began at #{}",
                      describe(program_, id), buffer.name, buffer.lifetimes[cursor.lifetime].first));
    cursor.written = true;  // reported once a lifetime
  }

  void outside(InstructionId id, const Buffer& buffer, const Cursor& cursor, bool reads) {
    std::vector<InstructionId> instructions;
    std::string where = "which never lives";
    if (cursor.lifetime > 0) {
      const InstructionId last = buffer.lifetimes[cursor.lifetime - 1].last;
      instructions = {last, id};
      where = fmt::format("which is released after {}", describe(program_, last));
    } else if (!buffer.lifetimes.empty()) {
      const InstructionId first = buffer.lifetimes.front().first;
      instructions = {id, first};
      where = fmt::format("which begins at {}", describe(program_, first));
    } else {
      instructions = {id};
    }
    findings_.add(Fault::outside_lifetime, index_, std::move(instructions),
                  fmt::format("{} {} '{}', {}", describe(program_, id), reads ? "reads" : "writes",
                              buffer.name, where));
  }

  const Program& program_;
  int index_;
  Findings& findings_;
  IdVector<Cursor> cursors_;
};

// The instructions of one opcode that add up one flat's gradient.
using Sum = std::vector<InstructionId>;

void check_sum(const Program& program, int index, const Sum& sum, Findings& findings) {
  std::optional<InstructionId> previous;
  for (InstructionId id : sum) {
    const Instruction& instruction = program.at(id);
    const bool goes_on = instruction.operand(Role::to).access == Access::add;
    if (goes_on != previous.has_value())
      findings.add(Fault::microbatch_order, index, previous ? std::vector{*previous, id} : std::vector{id},
                   fmt::format("{} {}", describe(program, id),
                               previous ? fmt::format("starts the sum afresh and loses that of {}",
                                                      describe(program, *previous))
                                        : "continues a sum that nothing has begun in this step"));
    if (previous && instruction.microbatch <= program.instructions[*previous].microbatch)
      findings.add(Fault::microbatch_order, index, {*previous, id},
                   fmt::format("{} adds to the sum behind {}; microbatches must ascend",
                               describe(program, id), describe(program, *previous)));
    previous = id;
  }
}

// A sum that leaves out a microbatch is wrong, unless it is the reduction of a sum made before.
void check_complete(const Program& program, int index, const Sum& sum, bool summed_before,
                    Findings& findings) {
  const int expected = summed_before ? 1 : program.microbatches;
  if (sum.empty() || static_cast<int>(sum.size()) == expected) return;
  findings.add(Fault::microbatch_order, index, sum,
               fmt::format("{} and its like add up {} of {} parts", describe(program, sum.front()),
                           sum.size(), expected));
}

void check_sums(const Program& program, int index, Findings& findings) {
  if (program.blocks > 1) return;  // a tree, which prove() follows
  struct Sums {
    Sum local, reduced;
  };
  std::map<FlatId, Sums> sums;
  for (InstructionId id = 0; id < program.instructions.count(); ++id) {
    const Instruction& instruction = program.at(id);
    // Behind the last microbatch, sums are made over ranks, not microbatches; so are sums of values.
    if (instruction.microbatch < 0 || program.flat_of(instruction) < 0) continue;
    if (instruction.op == Opcode::accumulate) sums[program.flat_of(instruction)].local.push_back(id);
    if (instruction.op == Opcode::reduce_scatter) sums[program.flat_of(instruction)].reduced.push_back(id);
  }
  for (const auto& [flat, of_flat] : sums) {
    check_sum(program, index, of_flat.local, findings);
    check_sum(program, index, of_flat.reduced, findings);
    check_complete(program, index, of_flat.local, false, findings);
    check_complete(program, index, of_flat.reduced, !of_flat.local.empty(), findings);
  }
}

// A unit's passes take the microbatches in ascending order, whatever the schedule between units.
void check_uses(const Program& program, int index, Findings& findings) {
  IdVector<IdArray<InstructionId, kPasses>> latest(program.units.size(), {-1, -1, -1, -1});
  for (InstructionId id = 0; id < program.instructions.count(); ++id) {
    const Instruction& use = program.instructions[id];
    if (use.op != Opcode::use) continue;
    InstructionId& previous = latest[use.unit][use.pass];
    if (previous >= 0 && use.microbatch < program.instructions[previous].microbatch)
      findings.add(Fault::microbatch_order, index, {previous, id},
                   fmt::format("{} comes behind {}; microbatches must ascend", describe(program, id),
                               describe(program, previous)));
    previous = id;
  }
}

}  // namespace

void check_lifetimes(const Program& program, int index, Findings& findings) {
  for (const Buffer& buffer : program.buffers) check_shape(program, index, buffer, findings);
  Walk(program, index, findings).run();
}

void check_microbatches(const Program& program, int index, Findings& findings) {
  check_sums(program, index, findings);
  check_uses(program, index, findings);
}

}  // namespace tessera
