// Proves that a step is safe before it runs, from the programs of all ranks and without running any. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/memory_plan.h"
#include "tessera/program.h"
#include "tessera/world_programs.h"

namespace tessera {

enum class Fault : std::uint8_t {
  collective_mismatch,  // two ranks' collectives on one channel differ at the same position
  deadlock,             // waits and collectives form a cycle
  unordered_access,     // two instructions access the same bytes, at least one writes, and neither waits for
                        // the other
  outside_lifetime,     // a buffer is accessed outside its lifetimes
  read_before_write,    // the first access of a lifetime only reads
  microbatch_order,     // a sum over microbatches is not in ascending order, or is not overwritten exactly
                        // once, at its start
  never_released,       // a lifetime runs past the program's end, or is malformed
  redundant_wait,       // a wait that other waits, or the order of its lane, already imply
  wrong_meaning,        // found by prove(): a step that does not compute what one rank would
  malformed,            // an id out of range, a collective without a channel, an instruction on a lane or
                        // axis that is not for it, a buffer that is accessed and not listed, a wait on a
                        // later instruction, a use that is opened and not closed, a plan that gives two live
                        // buffers the same bytes
};

std::string_view name_of(Fault fault);

struct Finding {
  Fault fault;
  int program = 0;                          // index into WorldPrograms::programs
  std::vector<InstructionId> instructions;  // the instructions of that program that are involved
  std::string message;                      // describes them, and those of other ranks that are involved
};

struct VerifyReport {
  std::vector<Finding> findings;  // at most 32; empty: proved
  bool ok() const { return findings.empty(); }
  // One line per finding.
  std::string to_string() const;
};

// The plan a program runs under, and its index in that plan.
struct PlannedProgram {
  const MemoryPlan* plan = nullptr;
  int index = 0;
};

// Proves that collectives match, in matching order, on every channel; that there is no deadlock; that any two
// accesses to the same bytes of which one writes are ordered (with `plans`, also through shared addresses);
// that every access is inside a lifetime that began with a write; that no other instruction disturbs the
// memory of an opened use until it is closed; that sums over microbatches are ascending; and that nothing is
// alive past the end. If a program is malformed or its plan unsound, the rest is not checked. Each lane
// enforces its own waits, so ranks need not agree on the order of collectives across lanes. `plans` is empty,
// or has for each program the plan that it runs under and its index in that plan. Throws UsageError without
// any program, and for ranks or plans that do not match the mesh.
VerifyReport verify(const WorldPrograms& world, IdSpan<const PlannedProgram> plans = {});

// Checks programs that one rank runs in turns, in the arenas of one plan; program i is the plan's i-th.
// Persistent buffers, and buffers with one_address, must have the same address in every program, and nothing
// else may use the memory of a persistent buffer. Each program must already be proved under the plan by
// verify().
VerifyReport verify_turns(std::span<const Program> programs, const MemoryPlan& plan);

}  // namespace tessera
