#include "tessera/exposed.h"

#include <utility>
#include <vector>

#include "src/program/opcodes.h"
#include "src/simulate/simulate.h"

namespace tessera {

IdArray<double, kGroups> exposed_along_us(const WorldPrograms& world, const WorldTimeline& timeline) {
  IdArray<double, kGroups> exposed = {};
  const int all = world.mesh.world();
  if (all == 1) return exposed;  // a rank alone communicates with nobody
  for (const RankTimeline& of : timeline.ranks) {
    const Program& program = world.programs[of.program];
    std::vector<Dataflow::Times> computing;
    IdArray<std::vector<Dataflow::Times>, kGroups> along;
    for (const TraceSpan& span : of.timeline.spans) {
      const Instruction& instruction = program.at(span.instruction);
      const Dataflow::Times times = {.start_us = span.start_us, .end_us = span.end_us};
      if (span.lane == Lane::compute) {
        computing.push_back(times);
      } else if (communicates(instruction.op)) {
        const Axis axis = program.channels[instruction.channel].axis;
        if (world.mesh.extent(axis) > 1) along[axis].push_back(times);
      }
    }
    for (int axis = 0; axis < kGroups; ++axis)
      exposed[axis] += of.ranks * outside(std::move(along[axis]), computing) / all;
  }
  return exposed;
}

}  // namespace tessera
