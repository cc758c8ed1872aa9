// Imports the weights that a run starts from.
#pragma once

#include "src/cli/setup.h"
#include "tessera/communicator.h"

namespace tessera::cli {

// Sets the engine's parameters from model.weights. Collective, as import_safetensors(), whose errors it
// throws; they name the key, or the argument `named` in its place.
void import_weights(const Setup& setup, const Communicator& world, Engine& engine,
                    const char* named = "model.weights");

}  // namespace tessera::cli
