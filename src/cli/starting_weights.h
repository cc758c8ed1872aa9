// Imports the weights that a run starts from.
#pragma once

#include "src/cli/setup.h"
#include "tessera/communicator.h"

namespace tessera::cli {

// Sets the engine's parameters from model.weights. Collective, as import_safetensors(), whose errors it
// throws; they name the key.
void import_weights(const Setup& setup, const Communicator& world, Engine& engine);

}  // namespace tessera::cli
