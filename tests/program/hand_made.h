// Programs written by hand, a line an instruction.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include "tessera/program.h"
#include "tessera/verify.h"

namespace tessera::testing {

class HandMade {
 public:
  HandMade() {
    program_.units = {"a", "b"};
    program_.flat_buffers.resize(2);
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
                .waits = std::move(waits),
                .reads = std::move(reads),
                .writes = std::move(writes)});
  }
  InstructionId gather(UnitId unit, BufferId from, BufferId to, std::vector<InstructionId> waits = {}) {
    return add({.op = Opcode::all_gather,
                .lane = Lane::gather,
                .unit = unit,
                .flat = unit,
                .microbatch = 0,
                .channel = 0,
                .waits = std::move(waits),
                .reads = {from},
                .writes = {to}});
  }
  InstructionId reduce(UnitId unit, BufferId from, BufferId to, std::vector<InstructionId> waits = {}) {
    return add({.op = Opcode::reduce_scatter,
                .lane = Lane::reduce,
                .unit = unit,
                .flat = unit,
                .microbatch = 0,
                .channel = 1,
                .waits = std::move(waits),
                .reads = {from},
                .writes = {to}});
  }

  // Of what a unit hands to the next, or its gradient: the lane says which, and which end.
  InstructionId message(Lane lane, BufferId buffer, int peer, std::vector<InstructionId> waits = {}) {
    const bool sends = lane == Lane::send_output || lane == Lane::send_gradient;
    program_.channels.push_back({Axis::pipeline, lane});
    return add({.op = sends ? Opcode::send : Opcode::receive,
                .lane = lane,
                .unit = 0,
                .microbatch = 0,
                .channel = static_cast<int>(program_.channels.size()) - 1,
                .peer = peer,
                .waits = std::move(waits),
                .reads = sends ? std::vector{buffer} : std::vector<BufferId>{},
                .writes = sends ? std::vector<BufferId>{} : std::vector{buffer}});
  }

  Program& program() { return program_; }
  Instruction& at(InstructionId id) { return program_.instructions[static_cast<std::size_t>(id)]; }
  Buffer& buffer(BufferId id) { return program_.buffers[static_cast<std::size_t>(id)]; }
  VerifyReport verified() const { return verify({.mesh = {}, .programs = {&program_, 1}}); }

 private:
  BufferId add(Buffer buffer) {
    program_.buffers.push_back(std::move(buffer));
    return static_cast<BufferId>(program_.buffers.size()) - 1;
  }
  InstructionId add(Instruction instruction) {
    program_.instructions.push_back(std::move(instruction));
    return static_cast<InstructionId>(program_.instructions.size()) - 1;
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
