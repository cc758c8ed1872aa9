// Changes of a strategy by which a plan may take less memory, and their names in a configuration.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/program.h"
#include "tessera/step_spec.h"

namespace tessera {

// The part of the strategy that a change concerns. Changes of one part exclude each other, except those of
// `saving`, which go together.
enum class StrategyPart : std::uint8_t { saving, stage, resident, states, share, parameters, activations };

struct StrategyChange {
  StrategyPart part = StrategyPart::saving;
  std::function<void(StepSpec&)> make;
  Space to = Space::device;  // new space of states, parameters or activations
  // Whether it concerns some of the units instead of all: resident units, or units with states on the device.
  bool some = false;
  bool makes_all_again = false;  // whether it recomputes all activations
  // Another part whose change includes this one: parameters off the device include their stage, and states on
  // the device their updates.
  StrategyPart comes_with = StrategyPart::saving;
};

// All changes, in the order in which they are made and preferred: those that cost little time first.
// `fitting` of all `units` can stay resident with the strategy as it is; −1 if that does not help.
std::vector<StrategyChange> strategy_changes(int units, int fitting);

// The differences, each in the words of a configuration.
std::vector<std::string> describe_changes(const Strategy& from, const Strategy& to);

}  // namespace tessera
