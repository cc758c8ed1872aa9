// The names of the values that parts of a unit read and write.
#pragma once

namespace tessera {

// A value of a unit, by its place in UnitGraph::values; or one of SharedValue.
using ValueId = int;
inline constexpr ValueId kNoValue = -6;

// What units share, or get from outside.
struct SharedValue {
  static constexpr ValueId batch = -1;            // inputs and targets of the microbatch
  static constexpr ValueId input = -2;            // what the unit before handed on
  static constexpr ValueId output = -3;           // what this unit hands on
  static constexpr ValueId output_gradient = -4;  // the gradient of `output`, which the next unit wrote
  static constexpr ValueId input_gradient = -5;   // the gradient of `input`
};

}  // namespace tessera
