// What is over when an instruction starts or ends, as far as one rank's lanes and waits say. Knows nothing of
// buffers or of other ranks.
#pragma once

#include <vector>

#include "tessera/program.h"

namespace tessera {

// By lane, the latest instruction known to be over; −1 for none. A lane runs in order, so the latest stands
// for all before it.
using LaneClock = IdArray<InstructionId, kLanes>;

inline constexpr LaneClock kNothingOver = [] {
  LaneClock clock{};
  clock.fill(-1);
  return clock;
}();

void join(LaneClock& into, const LaneClock& other);

class HappensBefore {
 public:
  // Every wait must name an earlier instruction.
  explicit HappensBefore(const Program& program);

  // Whether `first` is over before `second` starts, for certain.
  bool ordered(InstructionId first, InstructionId second) const;
  // Whether `wait`, one of the instruction's waits, is implied by its lane's order or by the other waits.
  bool redundant(InstructionId instruction, InstructionId wait) const;

 private:
  const LaneClock& at_end(InstructionId id) const { return at_end_[id]; }

  const Program& program_;
  IdVector<LaneClock> at_end_;          // what is over when the instruction is, itself included
  IdVector<InstructionId> lane_prior_;  // the one before it on its lane; −1 for none
};

}  // namespace tessera
