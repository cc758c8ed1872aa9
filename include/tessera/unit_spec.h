// What a model declares: its units and their parameters. Plain data.
#pragma once

#include <string>
#include <vector>

#include "tessera/cut.h"
#include "tessera/dtype.h"
#include "tessera/shape.h"

namespace tessera {

using UnitId = int;       // index into the model's units, in forward order
using FlatId = int;       // index into Layout::flats()
using ParameterId = int;  // index over all parameters of all units, in declaration order

// What a module declares about one parameter.
struct ParameterSpec {
  std::string name;  // unique over the model, e.g. "block.3.attention.weight"
  Shape shape;       // outermost dim first; {} is a scalar of one element
  DType dtype = DType::fp32;
  bool trainable = true;     // a frozen parameter is gathered but has no gradient and no optimizer state
  int group = 0;             // index of its optimizer group (weight decay, learning-rate factor)
  std::string tied_to = {};  // name of the parameter that this one shares its values with; empty: none
  Cut cut = {};              // over the tensor axis; without one, each of its ranks has a copy
  GradientOver gradient = GradientOver::copied;  // over the tensor axis, of a parameter that is not cut
};

// The parameters that are gathered and released together.
struct UnitSpec {
  std::string name;  // unique over the model, e.g. "block.3"
  std::vector<ParameterSpec> parameters;
  // Backward and recompute do not read the parameters (an embedding's tables), so they are not gathered for
  // these passes.
  bool read_in_forward_only = false;
};

}  // namespace tessera
