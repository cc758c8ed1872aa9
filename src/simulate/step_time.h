// The time of a step of all ranks.
#pragma once

#include <span>

#include "tessera/simulate.h"

namespace tessera {

// The simulated time of a step, in µs. `programs` are indexed by pipeline rank, and are those of the data
// ranks with most microbatches.
inline double step_us(const Layout& layout, const Mesh& mesh, IdSpan<const Program> programs,
                      const CostModel& cost) {
  return simulate({.mesh = mesh, .programs = programs, .program_of_rank = mesh.places(Axis::pipeline)},
                  layout, cost)
      .total_us;
}

}  // namespace tessera
