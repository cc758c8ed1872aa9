#include "src/program/happens_before.h"

#include <algorithm>

namespace tessera {
namespace {

std::size_t lane_of(const Program& program, InstructionId id) {
  return static_cast<std::size_t>(program.instructions[id].lane);
}

}  // namespace

void join(LaneClock& into, const LaneClock& other) {
  for (std::size_t lane = 0; lane < kLanes; ++lane) into[lane] = std::max(into[lane], other[lane]);
}

HappensBefore::HappensBefore(const Program& program) : program_(program) {
  LaneClock latest = kNothingOver;
  at_end_.reserve(program.instructions.size());
  for (InstructionId id = 0; id < program.instructions.count(); ++id) {
    const std::size_t lane = lane_of(program, id);
    LaneClock clock = latest[lane] < 0 ? kNothingOver : at_end(latest[lane]);
    for (InstructionId wait : program.instructions[id].waits) join(clock, at_end(wait));
    clock[lane] = id;
    at_end_.push_back(clock);
    lane_prior_.push_back(latest[lane]);
    latest[lane] = id;
  }
}

bool HappensBefore::ordered(InstructionId first, InstructionId second) const {
  return first < second && at_end(second)[lane_of(program_, first)] >= first;
}

bool HappensBefore::redundant(InstructionId instruction, InstructionId wait) const {
  const std::size_t lane = lane_of(program_, wait);
  const auto covers = [&](InstructionId id) { return id >= 0 && at_end(id)[lane] >= wait; };
  if (covers(lane_prior_[instruction])) return true;
  const std::vector<InstructionId>& waits = program_.instructions[instruction].waits;
  return std::ranges::count(waits, wait) > 1 ||
         std::ranges::any_of(waits, [&](InstructionId other) { return other != wait && covers(other); });
}

}  // namespace tessera
