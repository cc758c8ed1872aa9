#include "src/program/happens_before.h"

#include <algorithm>

namespace tessera {

void join(LaneClock& into, const LaneClock& other) {
  for (std::size_t lane = 0; lane < kLanes; ++lane) into[lane] = std::max(into[lane], other[lane]);
}

HappensBefore::HappensBefore(const Program& program) : program_(program) {
  LaneClock latest = kNothingOver;
  at_end_.reserve(program.instructions.size());
  for (InstructionId id = 0; id < program.instructions.count(); ++id) {
    const Lane lane = program.instructions[id].lane;
    LaneClock clock = latest[lane] < 0 ? kNothingOver : at_end(latest[lane]);
    for (InstructionId wait : program.instructions[id].waits) join(clock, at_end(wait));
    clock[lane] = id;
    at_end_.push_back(clock);
    lane_prior_.push_back(latest[lane]);
    latest[lane] = id;
  }
}

bool HappensBefore::ordered(InstructionId first, InstructionId second) const {
  return first < second && at_end(second)[program_.instructions[first].lane] >= first;
}

bool HappensBefore::redundant(InstructionId instruction, InstructionId wait) const {
  const Lane lane = program_.instructions[wait].lane;
  const auto covers = [&](InstructionId id) { return id >= 0 && at_end(id)[lane] >= wait; };
  if (covers(lane_prior_[instruction])) return true;
  const std::vector<InstructionId>& waits = program_.instructions[instruction].waits;
  return std::ranges::count(waits, wait) > 1 ||
         std::ranges::any_of(waits, [&](InstructionId other) { return other != wait && covers(other); });
}

}  // namespace tessera
