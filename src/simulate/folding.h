// Simulates a world with or without folding equal ranks. Tests compare the two.
#pragma once

#include <cstdint>

#include "tessera/simulate.h"

namespace tessera {

// Whether ranks that behave the same are simulated once. The times are the same.
enum class Folding : std::uint8_t { folded, each_rank };

WorldTimeline simulate(const WorldPrograms& world, const Layout& layout, const CostModel& cost,
                       Folding folding);

}  // namespace tessera
