// Checks whether the weights that a run starts from belong to its model. Tensors of equal names and shapes
// may still belong to a model that computes something else.
#pragma once

#include <filesystem>
#include <string>

#include "src/cli/setup.h"

namespace tessera::cli {

// Compares the config.json beside the weights with the one that the model would have. It compares what
// changes results and is not visible in any tensor: heads, attention's scale, activation function, epsilon,
// rotary embedding, and whether the head is the embedding. A missing key has the value that the transformers
// library uses. Does nothing if there is no such file. Throws UsageError naming the key and both values, and
// EnvironmentError if the file cannot be read or is not JSON. Returns a note for the user if config.json has
// other dropout shares than this run; otherwise empty.
std::string check_weights_config(const std::filesystem::path& weights, const Setup& setup);

}  // namespace tessera::cli
