// What decides the bits of a run, beside what its engine knows: where weights begin, schedule and samples.
#pragma once

#include <optional>
#include <string>

#include "src/cli/setup.h"
#include "tessera/numeric_differences.h"
#include "tessera/numerics.h"

namespace tessera::cli {

// Adds the run's own facts to those of its engine. `data` is null where it could not be opened: then the run
// is known by the names of its files.
Numerics with_run(Numerics of_engine, const Setup& setup, const Data* data);

// The same of a run that is only planned; opens its data where that can be. `why_not_opened`, where it could
// not be, says why.
struct PlannedNumerics {
  Numerics numerics;
  std::string why_not_opened = {};
};
PlannedNumerics planned_numerics(const Setup& setup, std::span<const TrainerPlan> plans);

// The facts by which what comes next may differ from what the run that was saved would have computed. Where
// its weights came from does not matter any more, nor the loss scale that it began with, nor a seed that
// nothing draws from.
std::vector<NumericDifference> differences_since(Numerics stored, Numerics now, const Setup& setup);

// Those of a run that goes on from a checkpoint which has `stored`: it began as that one did.
Numerics resumed(Numerics now, const Numerics& stored, const Setup& setup);

}  // namespace tessera::cli
