// The simulation of a world rank by rank, against which the one of classes of ranks is tested.
#pragma once

#include <cstdint>

#include "tessera/simulate.h"

namespace tessera {

// Whether ranks that cannot be told apart are simulated once. The times are the same.
enum class Folding : std::uint8_t { folded, each_rank };

WorldTimeline simulate(const WorldPrograms& world, const Layout& layout, const CostModel& cost,
                       Folding folding);

}  // namespace tessera
