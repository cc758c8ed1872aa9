#include "tessera/strategy.h"

#include <algorithm>
#include <functional>
#include <string>

#include "src/layout/enumerators.h"

namespace tessera {

std::string_view name_of(Placement placement) {
  constexpr std::string_view kNames[] = {"replicated", "sharded"};
  return kNames[static_cast<int>(placement)];
}

std::string_view name_of(ReduceWhen reduce) {
  constexpr std::string_view kNames[] = {"automatic", "each", "last"};
  return kNames[static_cast<int>(reduce)];
}

std::string_view name_of(Recompute recompute) {
  constexpr std::string_view kNames[] = {"none", "selective", "full"};
  return kNames[static_cast<int>(recompute)];
}

std::string_view name_of(UpdateWhen update) {
  constexpr std::string_view kNames[] = {"decided", "reduced", "next"};
  return kNames[static_cast<int>(update)];
}

std::string_view name_of(Reduction reduction) {
  constexpr std::string_view kNames[] = {"exact", "native"};
  return kNames[static_cast<int>(reduction)];
}

Placements Placements::of_stage(int stage) {
  if (stage < 0 || stage > 3)
    throw UsageError("stage " + std::to_string(stage) + " is not a ZeRO stage; it must be 0, 1, 2 or 3");
  const auto sharded_from = [stage](int first) {
    return stage >= first ? Placement::sharded : Placement::replicated;
  };
  return {.parameters = sharded_from(3), .gradients = sharded_from(2), .optimizer_state = sharded_from(1)};
}

void Strategy::check() const {
  check_enumerator("placements.parameters", placements.parameters, Placement::sharded);
  check_enumerator("placements.gradients", placements.gradients, Placement::sharded);
  check_enumerator("placements.optimizer_state", placements.optimizer_state, Placement::sharded);
  check_enumerator("reduce", reduce, ReduceWhen::last);
  check_enumerator("reduction", reduction, Reduction::native);
  check_enumerator("update", update, UpdateWhen::next);
  check_enumerator("recompute", recompute, Recompute::full);
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
  offload.check();
  if (update == UpdateWhen::next && offload.states == Space::device)
    throw UsageError(
        "update is next while offload.states is device; what waits for the next step is updated on the host: "
        "offload.states must be host or disk");
  for (const ActivationChoice& choice : unit_activations) {
    check_enumerator("unit_activations: the `recompute` of a unit", choice.recompute, Recompute::full);
    check_enumerator("unit_activations: the `kept` of a unit", choice.kept, Space::disk);
    if (choice.kept == Space::disk)
      throw UsageError("unit_activations has a unit whose `kept` is disk; it must be device or host");
    if (!choice.again.empty() && choice.recompute == Recompute::full)
      throw UsageError(
          "unit_activations has a unit whose `recompute` is full, which makes all values again, and whose "
          "`again` "
          "names some; leave `again` empty");
    if (std::ranges::adjacent_find(choice.again, std::ranges::greater_equal()) != choice.again.end())
      throw UsageError("unit_activations has a unit whose `again` does not ascend, each value once");
  }
  if (offload.parameters != Space::device && placements.parameters == Placement::replicated)
    throw UsageError(
        "offload.parameters is " + std::string(name_of(offload.parameters)) +
        " while placements.parameters is replicated; only sharded parameters can leave the device");
  if (offload.parameters != Space::device && state_over_replicas && !parameters_over_replicas)
    throw UsageError("offload.parameters is " + std::string(name_of(offload.parameters)) +
                     " and state_over_replicas is true; that needs parameters_over_replicas, too");
}

void Strategy::keep_states_on_device() {
  offload.states = Space::device;
  offload.states_on_device = 0.0;
  if (update == UpdateWhen::next) update = UpdateWhen::decided;
}

void Offload::check() const {
  check_enumerator("offload.states", states, Space::disk);
  check_enumerator("offload.parameters", parameters, Space::disk);
  check_enumerator("offload.activations", activations, Space::disk);
  if (!(states_on_device >= 0 && states_on_device <= 1))
    throw UsageError("offload.states_on_device is " + std::to_string(states_on_device) +
                     "; it must be a share of the units, 0 to 1");
  if (states_on_device > 0 && states == Space::device)
    throw UsageError("offload.states_on_device is " + std::to_string(states_on_device) +
                     " while offload.states is device, where all are; it must be 0");
  if (activations == Space::disk) throw UsageError("offload.activations is disk; it must be device or host");
  if (staged < 1) throw UsageError("offload.staged is " + std::to_string(staged) + "; it must be 1 or more");
}

std::string_view name_of(Space space) {
  constexpr std::string_view kNames[] = {"device", "host", "disk"};
  return kNames[static_cast<int>(space)];
}

ActivationChoice Strategy::activations_of(int unit) const {
  return unit_activations.empty() ? ActivationChoice{.recompute = recompute, .kept = offload.activations}
                                  : unit_activations.at(unit);
}

ReduceWhen Strategy::reduce_when(const Rounds& rounds) const {
  // With one there is nothing to sum locally first; where some ranks rest, and within blocks, sums go on in
  // the order of rounds.
  if (rounds.count == 1 || rounds.last_ranks > 0 || rounds.blocks > 1) return ReduceWhen::each;
  if (reduce != ReduceWhen::automatic) return reduce;
  return placements.gradients == Placement::sharded ? ReduceWhen::each : ReduceWhen::last;
}

Spreads spreads_of(const Strategy& strategy, const Mesh& mesh) {
  const Placements& placements = strategy.placements;
  const auto shards = [&](Placement placement) {
    return mesh.shard > 1 && placement == Placement::sharded ? kShard : kWhole;
  };
  Spreads spreads = {.parameters = shards(placements.parameters),
                     .gradients = shards(placements.gradients),
                     .states = shards(placements.optimizer_state)};
  if (!strategy.state_over_replicas || mesh.replicate == 1) return spreads;
  spreads.states = kSlice;
  // With one shard nothing is gathered around uses, so the replicas' slices are gathered after the update.
  if (strategy.parameters_over_replicas && spreads.parameters == kShard) spreads.parameters = kSlice;
  return spreads;
}

}  // namespace tessera
