// The uses of one microbatch: the default order, and the rules that any order keeps.
#pragma once

#include <span>

#include "tessera/program.h"

namespace tessera {

// The uses of one microbatch of `spec`, default or given, cut to the forward ones for an evaluation.
// Throws UsageError, naming the use, for an order that means nothing.
std::vector<Use> uses_of(const Layout& layout, const StepSpec& spec);

}  // namespace tessera
