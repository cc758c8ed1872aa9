// What of a strategy may be changed so that a plan takes less memory, and what a configuration calls it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/program.h"
#include "tessera/step_spec.h"

namespace tessera {

// Changes of one part exclude each other, or, of `saving`, go together.
enum class StrategyPart : std::uint8_t { saving, stage, resident, states, share, parameters, activations };

struct StrategyChange {
  StrategyPart part = StrategyPart::saving;
  std::function<void(StepSpec&)> make;
  Space to = Space::device;  // of states, parameters, activations
  // Of how many units it is, rather than of all: resident ones, or those with states on the device.
  bool some = false;
  bool makes_all_again = false;  // of the activations
  // What brings it along: parameters elsewhere their stage, states on the device their updates.
  StrategyPart comes_with = StrategyPart::saving;
};

// In the order in which they are made, and wanted: what costs little time first. `fitting` of all `units` can
// stay resident as it is; −1 where that helps nothing.
std::vector<StrategyChange> strategy_changes(int units, int fitting);

// What differs, each part in the words of a configuration.
std::vector<std::string> describe_changes(const Strategy& from, const Strategy& to);

}  // namespace tessera
