#include "src/cli/weights_config.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/cli/files.h"
#include "tessera/error.h"
#include "tessera/hugging_face.h"

namespace tessera::cli {

namespace {

using nlohmann::json;

// The keys of config.json that change what is computed, and no tensor; with what the transformers library
// takes where they are missing.
json defaults_of(const std::string& model_type) {
  if (model_type == "gpt2")
    return {{"n_head", 12},
            {"layer_norm_epsilon", 1e-5},
            {"activation_function", "gelu_new"},
            {"scale_attn_weights", true},
            {"scale_attn_by_inverse_layer_idx", false},
            {"tie_word_embeddings", true}};
  return {{"num_attention_heads", 32}, {"hidden_act", "silu"},    {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000.0},     {"rope_scaling", nullptr}, {"tie_word_embeddings", false}};
}

// The rotary embedding's scaling: null, or by its numbers; "default" is none.
json scaling_of(const json& scaling) {
  if (!scaling.is_object()) return nullptr;
  json type = scaling.contains("rope_type") ? scaling["rope_type"] : scaling.value("type", json(""));
  if (type == "default") return nullptr;
  json numbers = {{"rope_type", type}};
  for (const char* key :
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"})
    if (scaling.contains(key)) numbers[key] = scaling[key];
  return numbers;
}

// One function by several names.
json activation_of(const json& name) {
  if (name == "gelu_pytorch_tanh" || name == "gelu_fast") return "gelu_new";
  if (name == "swish") return "silu";
  return name;
}

// The values of a config.json under the keys of defaults_of(). Version 5 of transformers writes
// rope_parameters where version 4 writes rope_theta and rope_scaling.
json values_of(json config, const std::string& model_type) {
  if (const auto rope = config.find("rope_parameters"); rope != config.end() && rope->is_object()) {
    config["rope_scaling"] = *rope;
    if (rope->contains("rope_theta")) config["rope_theta"] = rope->at("rope_theta");
  }
  json values = defaults_of(model_type);
  for (auto& [key, value] : values.items())
    if (config.contains(key)) value = config[key];
  for (const char* key : {"activation_function", "hidden_act"})
    if (values.contains(key)) values[key] = activation_of(values[key]);
  if (values.contains("rope_scaling")) values["rope_scaling"] = scaling_of(values["rope_scaling"]);
  return values;
}

// With the values that count where the keys are missing.
json dropouts_of(const std::string& model_type) {
  if (model_type == "gpt2") return {{"resid_pdrop", 0.1}, {"embd_pdrop", 0.1}, {"attn_pdrop", 0.1}};
  return {{"attention_dropout", 0.0}};
}

// What a person should know where a run drops another share than its weights were trained with.
std::string note_on_dropout(const json& config, const json& own, const ModelConfig& model,
                            const std::string& model_type) {
  std::string other;
  const json defaults = dropouts_of(model_type);
  for (const auto& [key, missing] : defaults.items()) {
    const json value = config.contains(key) ? config[key] : missing;
    if (value != own.at(key)) other += fmt::format("{}{} {}", other.empty() ? "" : ", ", key, value.dump());
  }
  if (other.empty()) return "";
  return fmt::format("config.json has {}; this run drops {} (model.dropout) and {} (model.attention_dropout)",
                     other, model.dropout, model.attention_dropout);
}

}  // namespace

std::string check_weights_config(const std::filesystem::path& weights, const Setup& setup) {
  std::error_code error;
  const bool whole_folder = std::filesystem::is_directory(weights, error);
  const std::filesystem::path folder = whole_folder ? weights : absolute(weights).parent_path();
  const std::filesystem::path file = folder / "config.json";
  if (!exists(symlink_status(file, error))) return "";
  // What is there and cannot be read is no reason to go on without it.
  const std::optional<std::string> text = read_text(file);
  if (!text)
    throw EnvironmentError(
        fmt::format("model.weights: cannot read '{}': {}", file.string(), std::strerror(errno)));
  const json stored = json::parse(*text, nullptr, false);
  if (!stored.is_object())
    throw EnvironmentError(fmt::format("model.weights: '{}' is no JSON object", file.string()));
  const json own = json::parse(
      std::visit([](const auto& d) { return hugging_face_config(d, DType::fp32); }, setup.dimensions));
  const auto refuse_other = [&](const std::string& key, const json& theirs, const json& ours) {
    if (theirs == ours) return;
    throw UsageError(
        fmt::format("model.weights: '{}' has {} {}, the model of this run has {}; set the keys of "
                    "[model] as the weights need them; what none of them says is not supported",
                    file.string(), key, theirs.dump(), ours.dump()));
  };
  const std::string type = own.at("model_type");
  refuse_other("model_type", stored.value("model_type", json(type)), type);
  const json theirs = values_of(stored, type), ours = values_of(own, type);
  for (const auto& [key, value] : ours.items()) refuse_other(key, theirs.at(key), value);
  return note_on_dropout(stored, own, setup.config.model, type);
}

}  // namespace tessera::cli
