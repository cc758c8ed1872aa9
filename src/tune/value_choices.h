// Which of a unit's values could be made again in place of being kept, between the choices that Recompute
// names.
#pragma once

#include <vector>

#include "tessera/activations.h"
#include "tessera/simulate.h"

namespace tessera {

// A few sets of values, from few bytes to many. Each adds to the one before the values that free most memory
// for the time that it takes to make them again. None where the unit declares no values of its own.
std::vector<ActivationChoice> value_choices(const UnitGraph& graph, Space kept, const CostModel& cost);
inline constexpr int kMostValueChoices = 4;

}  // namespace tessera
