// Which choices of activations are tried, each for all units: those that Recompute names, and between them
// sets of values that are made again.
#pragma once

#include <span>
#include <vector>

#include "tessera/simulate.h"
#include "tessera/step_spec.h"

namespace tessera {

using UnitChoices = IdVector<ActivationChoice>;  // by unit

// Those of `among` for all units alike. Then, for each of these that keeps everything, a few sets of values:
// the first has the fewest bytes of every unit, the last the most. A unit has none where it declares no
// values of its own, or where the training programs' graphs of it have other values.
std::vector<UnitChoices> choices_to_try(std::span<const StepSpec> specs, const CostModel& cost, int units,
                                        std::span<const ActivationChoice> among);

}  // namespace tessera
