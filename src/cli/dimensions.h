// The dimensions of a configuration's model, and the keys of [model] that stand for them.
#pragma once

#include <variant>

#include "src/cli/config.h"
#include "tessera/model.h"

namespace tessera::cli {

using Dimensions = std::variant<Gpt2Config, LlamaConfig>;

// Those of the preset, changed by the keys that are not 0.
Dimensions dimensions_of(const ModelConfig& config);

// The keys that give these dimensions, whatever the preset: none of those that count is 0.
ModelConfig keys_for(const Dimensions& dimensions);

}  // namespace tessera::cli
