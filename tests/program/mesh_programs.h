// The programs of every rank of a mesh, planned and linked as they run.
#pragma once

#include <vector>

#include "tessera/budget.h"
#include "tessera/simulate.h"

namespace tessera::testing {

struct WholeMesh {
  Layout layout;
  Mesh mesh;
  std::vector<Program> programs;  // by pipeline rank
  std::vector<int> program_of_rank;

  WholeMesh(const std::vector<UnitSpec>& units, const Mesh& on, const StepSpec& spec)
      : layout(units, on.shard, on.replicate), mesh(on) {
    for (int rank = 0; rank < on.pipeline; ++rank)
      programs.push_back(std::move(build_and_plan(layout, on, {&spec, 1}, rank).programs[0]));
    for (int rank = 0; rank < on.world(); ++rank)
      program_of_rank.push_back(on.coordinates(rank)[static_cast<std::size_t>(Axis::pipeline)]);
  }

  WorldPrograms world() const {
    return {.mesh = mesh, .programs = programs, .program_of_rank = program_of_rank};
  }
  WorldTimeline simulated(const CostModel& cost, Folding folding = Folding::folded) const {
    return simulate(world(), layout, cost, folding);
  }
};

}  // namespace tessera::testing
