#include "src/cli/weights_config.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/error.h"
#include "tessera/hugging_face.h"

namespace tessera::cli {

namespace {

using nlohmann::json;

// Of config.json, as transformers (4 and 5) writes it: each changes what is computed, and no tensor.
constexpr const char* kKeys[] = {
    "model_type",          "n_head",     "layer_norm_epsilon", "activation_function", "num_attention_heads",
    "num_key_value_heads", "hidden_act", "rms_norm_eps",       "rope_theta",          "rope_scaling"};

// The rotary embedding's scaling: null, or by its numbers; "default" is none.
json scaling_of(const json& scaling) {
  if (!scaling.is_object()) return nullptr;
  const std::string type = scaling.value("rope_type", scaling.value("type", ""));
  if (type == "default") return nullptr;
  json numbers = {{"rope_type", type}};
  for (const char* key :
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"})
    if (scaling.contains(key)) numbers[key] = scaling[key];
  return numbers;
}

json value_of(const json& config, const std::string& key) {
  const json& value = config.at(key);
  if (key == "rope_scaling") return scaling_of(value);
  // One function by several names.
  if (value == "gelu_pytorch_tanh" || value == "gelu_fast") return "gelu_new";
  if (value == "swish") return "silu";
  return value;
}

}  // namespace

void check_weights_config(const std::filesystem::path& weights, const Setup& setup) {
  const std::filesystem::path folder = is_directory(weights) ? weights : absolute(weights).parent_path();
  const std::filesystem::path file = folder / "config.json";
  std::ifstream in(file);
  if (!in) return;
  const json stored = json::parse(in, nullptr, false);
  if (!stored.is_object())
    throw EnvironmentError(fmt::format("model.weights: '{}' is no JSON object", file.string()));
  const json own = json::parse(
      std::visit([](const auto& d) { return hugging_face_config(d, DType::fp32); }, setup.dimensions));
  for (const char* key : kKeys) {
    if (!stored.contains(key) || !own.contains(key) || value_of(stored, key) == value_of(own, key)) continue;
    throw UsageError(
        fmt::format("model.weights: '{}' has {} {}, the model of this run has {}; set the keys of "
                    "[model] as the weights need them",
                    file.string(), key, stored[key].dump(), own[key].dump()));
  }
}

}  // namespace tessera::cli
