// What a Hugging Face folder's config.json says of a model, in the words of [model]. Knows no tensors.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "src/cli/config.h"

namespace tessera::cli {

struct StoredModel {
  std::filesystem::path file;
  ModelConfig model;                        // family and every dimension; 0 only where a key does not count
  std::map<std::string, std::string> told;  // by key of [model], what the file says: "n_head 12"
  std::string type;                         // precision.parameters of its tensors; empty where it is not told
  std::map<std::string, double> dropouts;   // the shares that its training drops: "attn_pdrop" 0.1
};

// Reads the config.json of a model. A missing key has the value that the transformers library uses. `key` is
// the one that names the weights, for messages. Throws EnvironmentError if the file cannot be read or is no
// JSON object, and UsageError naming the key of config.json if a value is out of range or not supported.
StoredModel read_stored_model(const std::filesystem::path& file, const std::string& key);

// The config.json beside weights: a folder, or a file or index in it. Nothing if there is none.
std::optional<std::filesystem::path> stored_config_file(const std::filesystem::path& weights);

// Fills in the keys of [model] that the user did not write: by the config.json beside model.weights. Those
// that the user wrote must agree with it. Where there is none, the one that a run keeps in `run_folder` is
// taken. Adds notes on what was filled in, and on what could not be checked because there is no such file,
// and, where the model `trains`, on what it drops. `key` names the weights in messages.
// Throws like read_stored_model(), and UsageError naming a key of [model] that disagrees, or that is needed,
// because no tensor tells it.
void complete_model(Config& config, const std::filesystem::path& run_folder = {}, bool trains = true,
                    const std::string& key = "model.weights");

}  // namespace tessera::cli
