// The checks that verify() is made of, one file each. Each adds what it finds to a report; the checks of one
// program assume that check_structure() found nothing in it.
#pragma once

#include <string>
#include <vector>

#include "src/program/happens_before.h"
#include "tessera/verify.h"

namespace tessera {

// Collects findings, up to a limit.
class Findings {
 public:
  explicit Findings(std::vector<Finding>& findings) : findings_(findings) {}

  bool empty() const { return findings_.empty(); }
  bool full() const { return findings_.size() >= kMost; }
  void add(Fault fault, int program, std::vector<InstructionId> instructions, std::string message) {
    if (!full()) findings_.push_back({fault, program, std::move(instructions), std::move(message)});
  }

 private:
  static constexpr std::size_t kMost = 32;
  std::vector<Finding>& findings_;
};

inline const Instruction& at(const Program& program, InstructionId id) { return program.instructions[id]; }

// structure.cpp: every id within its range, operands as the table of opcodes wants them, waits on earlier
// instructions, channels where they belong.
void check_structure(const Program& program, int index, const Mesh& mesh, Findings& findings);
// structure.cpp: the plan has an aligned place within the arena for each buffer, and no two that hold
// something at one time share addresses.
void check_plan(const Program& program, int index, const PlannedProgram& planned, Findings& findings);

// lifetimes.cpp: lifetimes well-formed; accesses inside them; a write first.
void check_lifetimes(const Program& program, int index, Findings& findings);
// lifetimes.cpp: sums over microbatches start afresh once, ascend and are complete; uses ascend.
void check_microbatches(const Program& program, int index, Findings& findings);

// accesses.cpp: conflicting accesses are ordered, through shared addresses too where there is a plan.
void check_accesses(const Program& program, int index, const PlannedProgram& planned,
                    const HappensBefore& order, Findings& findings);
// accesses.cpp: no wait that others imply.
void check_waits(const Program& program, int index, const HappensBefore& order, Findings& findings);

// leases.cpp: uses that are opened are closed, and touch until then what they touch at either end.
void check_leases(const Program& program, int index, Findings& findings);

// collectives.cpp: the ranks of every group issue equal collectives in equal order on each channel,
// sends meet their receives, and these can all complete.
void check_collectives(const WorldPrograms& world, Findings& findings);

}  // namespace tessera
