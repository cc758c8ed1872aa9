// Whether what a configuration describes can be planned at all: whether its numbers can be counted.
// UsageError naming the keys.
#pragma once

#include "src/cli/setup.h"

namespace tessera::cli {

void check_batch(const Setup& setup);       // before there is a model
void check_parameters(const Setup& setup);  // of the model
void check_sums(const Setup& setup);        // of the model, by the mesh of the options

}  // namespace tessera::cli
