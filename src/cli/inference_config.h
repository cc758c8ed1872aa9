// The configuration of a model that is run and not trained: what its weights tell, and the keys that matter.
#pragma once

#include <filesystem>
#include <string>

#include "src/cli/config.h"

namespace tessera::cli {

// What names the weights, and the checkpoint there.
struct InferenceWeights {
  std::filesystem::path named;       // as the user named them
  const char* by = "--weights";      // the argument or key that named them
  std::filesystem::path checkpoint;  // the checkpoint's own folder; empty: they are a Hugging Face folder's
};

// Finds the weights: `argument`, unless it is empty, else the newest checkpoint in run.checkpoint, else
// model.weights. Throws UsageError if nothing names them, and EnvironmentError if nothing is there.
InferenceWeights find_weights(const std::string& argument, const Config& config);

// Throws UsageError for a setting, "section.key=value", of a key that has no meaning where nothing is
// trained.
void check_settings(Config& config, std::span<const std::string> settings);

// Sets keys that have no meaning where nothing is trained to their defaults, and those of the model by the
// weights. Adds notes on what was filled in. Throws UsageError naming a key of [model] that disagrees.
void complete_for_inference(Config& config, const InferenceWeights& weights);

}  // namespace tessera::cli
