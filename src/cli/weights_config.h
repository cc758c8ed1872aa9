// Whether the weights that a run starts from are of its model: tensors of equal names and shapes may still
// belong to one that computes something else.
#pragma once

#include <filesystem>
#include <string>

#include "src/cli/setup.h"

namespace tessera::cli {

// Compares the config.json that lies beside the weights with what the model's would be, in what changes
// results and no tensor shows: heads, attention's scale, activation, epsilon, rotary embedding, whether the
// head is the embedding; a key that is missing there has the value that the transformers library takes.
// Nothing where there is no such file. UsageError naming the key and both values; EnvironmentError where it
// cannot be read or is no JSON. Returns what a run from there does otherwise than the transformers library
// would, in words: it drops nothing out. Empty: nothing.
std::string check_weights_config(const std::filesystem::path& weights, const Setup& setup);

}  // namespace tessera::cli
