// Checks whether a configuration can be planned at all: that its numbers do not overflow. Throw UsageError
// naming the keys.
#pragma once

#include "src/cli/setup.h"

namespace tessera::cli {

void check_batch(const Setup& setup);       // call before there is a model
void check_parameters(const Setup& setup);  // of the model
void check_sums(const Setup& setup);        // of the model, with the mesh of the options

}  // namespace tessera::cli
