#include "tessera/strategy.h"

#include <string>

namespace tessera {

Placements Placements::of_stage(int stage) {
  if (stage < 0 || stage > 3)
    throw UsageError("stage " + std::to_string(stage) + " is not a ZeRO stage; it must be 0, 1, 2 or 3");
  const auto sharded_from = [stage](int first) {
    return stage >= first ? Placement::sharded : Placement::replicated;
  };
  return {.parameters = sharded_from(3), .gradients = sharded_from(2), .optimizer_state = sharded_from(1)};
}

void Strategy::check() const {
  if (placements.parameters == Placement::sharded && placements.gradients != Placement::sharded)
    throw UsageError(
        "placements.gradients is replicated while placements.parameters is sharded; sharded parameters need "
        "sharded gradients");
  if (placements.gradients == Placement::sharded && placements.optimizer_state != Placement::sharded)
    throw UsageError(
        "placements.optimizer_state is replicated while placements.gradients is sharded; sharded gradients "
        "need sharded optimizer state");
  if (state_over_replicas && placements.optimizer_state == Placement::replicated)
    throw UsageError(
        "state_over_replicas is true while placements.optimizer_state is replicated; it must be sharded");
  if (parameters_over_replicas && (!state_over_replicas || placements.parameters == Placement::replicated))
    throw UsageError(
        "parameters_over_replicas is true; it needs sharded placements.parameters and state_over_replicas");
  if (prefetch < 0)
    throw UsageError("prefetch is " + std::to_string(prefetch) + "; it must be 0 or more uses ahead");
  if (resident_units < 0)
    throw UsageError("resident_units is " + std::to_string(resident_units) + "; it must be 0 or more units");
  if (resident_units > 0 && placements.parameters == Placement::replicated)
    throw UsageError(
        "resident_units is " + std::to_string(resident_units) +
        " while placements.parameters is replicated, where every unit stays; it must be 0 unless "
        "parameters are sharded");
}

ReduceWhen Strategy::reduce_when(int microbatches) const {
  if (microbatches == 1) return ReduceWhen::each;  // nothing to sum locally first
  if (reduce != ReduceWhen::automatic) return reduce;
  return placements.gradients == Placement::sharded ? ReduceWhen::each : ReduceWhen::last;
}

}  // namespace tessera
