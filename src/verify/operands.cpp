// The lists of an instruction, which all else is proved by, name what an executor touches as it runs it: the
// buffers that the program keeps for the instruction's flat.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "src/program/opcodes.h"
#include "src/verify/checks.h"

namespace tessera {
namespace {

struct Operands {
  std::vector<BufferId> reads, writes;  // −1 for what there is none of
};

Operands of_reduction(const Program& program, const Instruction& reduction, const FlatBuffers& flat) {
  const bool of_replicas =
      program.channels[static_cast<std::size_t>(reduction.channel)].axis == Axis::replicate;
  Operands touched = {.reads = {of_replicas           ? flat.accumulator
                                : flat.local_sum >= 0 ? flat.local_sum
                                                      : flat.gradient},
                      .writes = {flat.accumulator}};
  if (reduction.accumulate) touched.reads.push_back(flat.accumulator);
  if (reduction.squares) touched.writes.push_back(program.square_sums);
  return touched;
}

Operands of_accumulation(const Instruction& sum, const FlatBuffers& flat) {
  if (sum.microbatch < 0) return {.reads = {flat.tied_sum, flat.accumulator}, .writes = {flat.accumulator}};
  return {.reads = {flat.gradient, sum.accumulate ? flat.local_sum : -1}, .writes = {flat.local_sum}};
}

Operands of_update(const FlatBuffers& flat) {
  const UpdateBuffers& update = flat.update;
  Operands touched = {.reads = {update.gradient, update.master}, .writes = {update.master, update.parameter}};
  for (const BufferId moment : update.moments) {
    touched.reads.push_back(moment);
    touched.writes.push_back(moment);
  }
  return touched;
}

// Beside the first of its lists, which its own checks look at.
Operands operands_of(const Program& program, const Instruction& instruction) {
  if (instruction.flat < 0) return {};
  const FlatBuffers& flat = program.flat_buffers[static_cast<std::size_t>(instruction.flat)];
  switch (instruction.op) {
    case Opcode::reduce_scatter:
      return of_reduction(program, instruction, flat);
    case Opcode::accumulate:
      return of_accumulation(instruction, flat);
    case Opcode::square_sum:
      return {.reads = {flat.reduced}, .writes = {program.square_sums}};
    case Opcode::update:
      return of_update(flat);
    default:
      return {};
  }
}

}  // namespace

void check_operands(const Program& program, int index, Findings& findings) {
  for (InstructionId id = 0; id < static_cast<InstructionId>(program.instructions.size()); ++id) {
    const Instruction& instruction = at(program, id);
    const Operands touched = operands_of(program, instruction);
    const auto require = [&](const std::vector<BufferId>& all, const std::vector<BufferId>& listed,
                             std::string_view verb) {
      for (const BufferId buffer : all)
        if (buffer >= 0 && !std::ranges::binary_search(listed, buffer))
          findings.add(Fault::malformed, index, {id},
                       fmt::format("{} {} '{}', which it does not list", describe(program, id), verb,
                                   program.buffers[static_cast<std::size_t>(buffer)].name));
    };
    require(touched.reads, instruction.reads, "reads");
    require(touched.writes, instruction.writes, "writes");
  }
}

}  // namespace tessera
