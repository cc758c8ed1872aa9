// Imports the weights that a run starts from.
#pragma once

#include "src/cli/setup.h"
#include "tessera/communicator.h"

namespace tessera::cli {

// Sets the parameters of the trainer's engine from model.weights, and those of adapters from model.adapter;
// without one, they keep what the trainer began with. Collective, as import_safetensors(), whose errors it
// throws; they name the key, or the argument `named` in its place.
void import_weights(const Setup& setup, const Communicator& world, Trainer& trainer,
                    const char* named = "model.weights");

}  // namespace tessera::cli
