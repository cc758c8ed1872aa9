// Programs written by hand, a line an instruction.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "tessera/program.h"
#include "tessera/verify.h"
#include "tests/program/accesses.h"

namespace tessera::testing {

class HandMade {
 public:
  HandMade() {
    program_.units = {{.name = "a"}, {.name = "b"}};
    program_.channels = {{Axis::shard, Lane::gather}, {Axis::shard, Lane::reduce}};
  }

  BufferId persistent(const std::string& name, std::int64_t bytes = 256) {
    return add({.name = name, .bytes = bytes, .persistent = true, .lifetimes = {}});
  }
  BufferId passing(const std::string& name, std::vector<Lifetime> lifetimes, std::int64_t bytes = 256) {
    return add({.name = name, .bytes = bytes, .lifetimes = std::move(lifetimes)});
  }

  InstructionId use(UnitId unit, std::vector<BufferId> reads, std::vector<BufferId> writes,
                    std::vector<InstructionId> waits = {}, Pass pass = Pass::forward) {
    return add({.op = Opcode::use,
                .lane = Lane::compute,
                .pass = pass,
                .unit = unit,
                .microbatch = 0,
                .operands = accesses(reads, writes),
                .waits = std::move(waits)});
  }
  InstructionId gather(UnitId unit, BufferId from, BufferId to, std::vector<InstructionId> waits = {}) {
    return add({.op = Opcode::all_gather,
                .lane = Lane::gather,
                .unit = unit,
                .microbatch = 0,
                .channel = 0,
                .operands = {part(Role::from, from, kShard, Access::read),
                             part(Role::to, to, kWhole, Access::write)},
                .waits = std::move(waits)});
  }
  InstructionId reduce(UnitId unit, BufferId from, BufferId to, std::vector<InstructionId> waits = {}) {
    return add({.op = Opcode::reduce_scatter,
                .lane = Lane::reduce,
                .unit = unit,
                .microbatch = 0,
                .channel = 1,
                .operands = {part(Role::from, from, kWhole, Access::read),
                             part(Role::to, to, kShard, Access::write)},
                .waits = std::move(waits)});
  }

  // Of what a unit hands to the next, or its gradient: the lane says which, and which end.
  InstructionId message(Lane lane, BufferId buffer, int peer, std::vector<InstructionId> waits = {}) {
    const bool sends = lane == Lane::send_output || lane == Lane::send_gradient;
    program_.channels.push_back({Axis::pipeline, lane});
    return add({.op = sends ? Opcode::send : Opcode::receive,
                .lane = lane,
                .unit = 0,
                .microbatch = 0,
                .channel = program_.channels.count() - 1,
                .peer = peer,
                .operands = {{.role = sends ? Role::from : Role::to,
                              .buffer = buffer,
                              .access = sends ? Access::read : Access::write}},
                .waits = std::move(waits)});
  }

  Program& program() { return program_; }
  Instruction& at(InstructionId id) { return program_.instructions[id]; }
  Buffer& buffer(BufferId id) { return program_.buffers[id]; }
  VerifyReport verified() const { return verify({.mesh = {}, .programs = {&program_, 1}}); }

 private:
  // All buffers of what communicates are of one flat.
  Operand part(Role role, BufferId id, const Spread& spread, Access access) {
    buffer(id).flat = 0;
    return {.role = role, .buffer = id, .region = Region::part_of(spread), .access = access};
  }
  BufferId add(Buffer buffer) {
    program_.buffers.push_back(std::move(buffer));
    return program_.buffers.count() - 1;
  }
  InstructionId add(Instruction instruction) {
    program_.instructions.push_back(std::move(instruction));
    return program_.instructions.count() - 1;
  }

  Program program_;
};

// Whether the report has a finding of this kind that names all of these instructions.
inline bool has(const VerifyReport& report, Fault fault, std::initializer_list<InstructionId> named = {}) {
  for (const Finding& finding : report.findings) {
    bool all = finding.fault == fault;
    for (InstructionId id : named) {
      bool found = false;
      for (InstructionId other : finding.instructions) found = found || other == id;
      all = all && found;
    }
    if (all) return true;
  }
  return false;
}

}  // namespace tessera::testing
