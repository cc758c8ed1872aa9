// Checks of an optimizer's options. The public functions on options are in tessera/optimizer.h.
#pragma once

#include <string>

#include "tessera/optimizer_options.h"

namespace tessera {

// What is required of a value with this range, in words; empty if the value is allowed.
std::string problem_of(OptionRange range, double value);

// Throws UsageError naming the optimizer, the field and its value.
void check_options(OptimizerOptions options);

}  // namespace tessera
