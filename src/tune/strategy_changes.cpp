#include "src/tune/strategy_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

int stage_of(const Placements& placements) {
  for (int stage = 0; stage < 3; ++stage)
    if (Placements::of_stage(stage) == placements) return stage;
  return 3;
}

void raise(Strategy& strategy, int stage) {
  if (stage_of(strategy.placements) < stage) strategy.placements = Placements::of_stage(stage);
}

void move_states(Strategy& strategy, Space space) {
  if (space == Space::device)
    strategy.keep_states_on_device();
  else
    strategy.offload.states = space;
}

// Where they are sharded.
void move_parameters(Strategy& strategy, Space space) {
  if (space != Space::device) raise(strategy, 3);
  strategy.offload.parameters = space;
}

// An order of a trainer's own says itself what is kept, and where.
void move_activations(StepSpec& spec, Space space) {
  if (!spec.order.empty()) return;
  spec.strategy.offload.activations = space;
  for (ActivationChoice& choice : spec.strategy.unit_activations) choice.kept = space;
}

void recompute_cheap_parts(StepSpec& spec) {
  Strategy& strategy = spec.strategy;
  if (spec.order.empty() && strategy.recompute == Recompute::none && strategy.unit_activations.empty())
    strategy.recompute = Recompute::selective;
}

void recompute_all(StepSpec& spec) {
  if (!spec.order.empty()) return;
  spec.strategy.unit_activations = {};
  spec.strategy.recompute = Recompute::full;
}

// Also of the units that keep theirs on the device.
void move_all_states(StepSpec& spec) { spec.strategy.offload.states_on_device = 0.0; }

void share_states(Strategy& strategy, double on_device) {
  if (strategy.offload.states != Space::device) strategy.offload.states_on_device = on_device;
}

// Of states on their way to or from the host or the disk, one unit's at a time.
void stage_one(StepSpec& spec) {
  Offload& offload = spec.strategy.offload;
  if (offload.states != Space::device || offload.parameters != Space::device) offload.staged = 1;
}

// What is gathered for one use at a time takes the least, but for parameters off the device, of which one
// that stays is not brought again.
void keep_resident(Strategy& strategy, int units) {
  if (strategy.offload.parameters != Space::device) strategy.resident_units = units;
}

void update_when_decided(StepSpec& spec) {
  if (spec.strategy.update == UpdateWhen::next) spec.strategy.update = UpdateWhen::decided;
}

}  // namespace

std::vector<StrategyChange> strategy_changes(int units, int fitting) {
  constexpr int kParts = 4;  // of the units
  std::vector<StrategyChange> changes;
  const auto add = [&](StrategyPart part, std::function<void(StepSpec&)> make, Space to = Space::device) {
    changes.push_back({part, std::move(make), to});
  };
  const auto saving = [&](void (*make)(StepSpec&)) { add(StrategyPart::saving, make); };
  const auto stage = [&](int number) {
    add(StrategyPart::stage, [number](StepSpec& spec) { raise(spec.strategy, number); });
  };
  const auto resident = [&](int count, bool some) {
    add(StrategyPart::resident, [count](StepSpec& spec) { keep_resident(spec.strategy, count); });
    changes.back().some = some;
  };
  const auto share = [&](double of_units) {
    add(StrategyPart::share, [of_units](StepSpec& spec) { share_states(spec.strategy, of_units); });
    changes.back().some = true;
  };
  const auto states = [&](Space to) {
    add(
        StrategyPart::states, [to](StepSpec& spec) { move_states(spec.strategy, to); }, to);
  };
  const auto parameters = [&](Space to) {
    add(
        StrategyPart::parameters, [to](StepSpec& spec) { move_parameters(spec.strategy, to); }, to);
  };
  const auto activations = [&](Space to) {
    add(
        StrategyPart::activations, [to](StepSpec& spec) { move_activations(spec, to); }, to);
  };

  states(Space::device);
  parameters(Space::device);
  activations(Space::device);
  saving(update_when_decided);
  changes.back().comes_with = StrategyPart::states;
  stage(1);
  stage(2);
  saving(recompute_cheap_parts);
  saving([](StepSpec& spec) { spec.strategy.resident_units = 0; });
  stage(3);
  changes.back().comes_with = StrategyPart::parameters;
  saving(move_all_states);
  changes.back().comes_with = StrategyPart::states;
  states(Space::host);
  activations(Space::host);
  saving(recompute_all);
  changes.back().makes_all_again = true;
  parameters(Space::host);
  states(Space::disk);
  parameters(Space::disk);
  for (int part = 1; part < kParts; ++part) share(static_cast<double>(part) / kParts);
  for (int part = 1; part < kParts; ++part)
    if (const int count = units * part / kParts; count > 0) resident(count, true);
  if (fitting >= 0) resident(fitting, false);
  resident(units, false);
  saving(stage_one);
  saving([](StepSpec& spec) { spec.strategy.pipeline.gather_once = false; });
  saving([](StepSpec& spec) { spec.strategy.prefetch = 0; });
  return changes;
}

std::vector<std::string> describe_changes(const Strategy& from, const Strategy& to) {
  std::vector<std::string> parts;
  const auto add = [&](bool changed, std::string_view name, const auto& value) {
    if (changed) parts.push_back(fmt::format("{} = {}", name, value));
  };
  const Offload &before = from.offload, &after = to.offload;
  if (to.placements != from.placements)
    parts.push_back(fmt::format("strategy.stage = {}", stage_of(to.placements)));
  add(to.resident_units != from.resident_units, "strategy.resident_units", to.resident_units);
  // What was chosen for each unit gives way to one word for all, of both.
  const bool one_for_all = to.unit_activations.empty() && !from.unit_activations.empty();
  add(to.recompute != from.recompute || one_for_all, "strategy.recompute", name_of(to.recompute));
  add(after.states != before.states, "offload.states", name_of(after.states));
  add(after.states_on_device != before.states_on_device, "offload.states_on_device", after.states_on_device);
  add(after.parameters != before.parameters, "offload.parameters", name_of(after.parameters));
  add(to.unit_activations != from.unit_activations || after.activations != before.activations,
      "offload.activations", name_of(after.activations));
  add(after.staged != before.staged, "offload.staged", after.staged);
  add(to.update != from.update, "strategy.update", name_of(to.update));
  add(to.pipeline.gather_once != from.pipeline.gather_once, "pipeline.gather_once", to.pipeline.gather_once);
  add(to.prefetch != from.prefetch, "strategy.prefetch", to.prefetch);
  return parts;
}

}  // namespace tessera
