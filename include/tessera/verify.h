// Proves a step safe before it runs: on all ranks' programs at once, without running any. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/memory_plan.h"
#include "tessera/program.h"
#include "tessera/world_programs.h"

namespace tessera {

enum class Fault : std::uint8_t {
  collective_mismatch,  // two ranks' collectives of one channel differ at the same place
  deadlock,             // waits and collectives form a cycle
  unordered_access,     // two instructions touch the same bytes, one writes, and neither waits for the other
  outside_lifetime,     // a buffer is touched where it holds nothing
  read_before_write,    // a lifetime's first access only reads
  microbatch_order,     // a sum over microbatches is not ascending, or does not start afresh exactly once
  never_released,       // a lifetime runs past the program, or is malformed
  redundant_wait,       // a wait that other waits or its lane imply
  wrong_meaning,        // what prove() finds: a step that does not compute what one rank would
  malformed,            // an id out of range, a collective without a channel, a lane or an axis that is not
                        // for it, a buffer that is touched and not listed, a wait on a later instruction,
                        // a use that is opened and not closed, a plan that gives two live buffers the
                        // same bytes
};

std::string_view name_of(Fault fault);

struct Finding {
  Fault fault;
  int program = 0;                          // index into WorldPrograms::programs
  std::vector<InstructionId> instructions;  // the ones of that program that are involved
  std::string message;                      // names them in words, and those of other ranks
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

// What is proved: matching collectives in matching order on every channel; no deadlock; every two accesses to
// the same bytes, of which one writes, ordered (with `plans`, also through shared addresses); every access
// inside a lifetime that began with a write; what an opened use touches left alone until it is closed; sums
// over microbatches ascending; nothing alive past the end.
// Where a program is malformed or its plan unsound, the rest is not looked at. Waits are enforced lane by
// lane: that ranks also agree on the order of collectives across lanes is not asked. `plans` is empty, or
// holds for each program the plan it runs under and its index in that plan. Throws UsageError for a world
// that is none: no program, or ranks or plans that do not match the mesh.
VerifyReport verify(const WorldPrograms& world, std::span<const PlannedProgram> plans = {});

// The same of programs that one rank runs in turns, in the arenas of one plan, program i as the plan's i-th:
// what persists is where it is in all of them, what has one address has one in all, and nothing else of any
// program lies where something persists. Each program is taken to be proved under the plan by verify().
VerifyReport verify_turns(std::span<const Program> programs, const MemoryPlan& plan);

}  // namespace tessera
