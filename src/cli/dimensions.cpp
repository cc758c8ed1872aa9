#include "src/cli/dimensions.h"

namespace tessera::cli {

namespace {

void change(std::int64_t value, std::int64_t& target) {
  if (value > 0) target = value;
}

void change(double value, double& target) {
  if (value > 0.0) target = value;
}

// What the families have in common.
template <class FamilyConfig>
FamilyConfig common_dimensions(const ModelConfig& config) {
  FamilyConfig dimensions = FamilyConfig::preset(config.preset);
  change(config.vocabulary, dimensions.vocabulary);
  dimensions.pad_vocabulary_to = config.pad_vocabulary_to;
  change(config.context, dimensions.context);
  change(config.layers, dimensions.layers);
  change(config.heads, dimensions.heads);
  change(config.channels, dimensions.channels);
  change(config.logits_memory, dimensions.logits_bytes);
  dimensions.dropout = config.dropout;
  dimensions.attention_dropout = config.attention_dropout;
  return dimensions;
}

ModelConfig common_keys(const auto& dimensions, const char* family) {
  ModelConfig keys;
  keys.family = family;
  keys.vocabulary = dimensions.vocabulary;
  keys.context = dimensions.context;
  keys.layers = dimensions.layers;
  keys.heads = dimensions.heads;
  keys.channels = dimensions.channels;
  return keys;
}

ModelConfig keys_of_family(const Gpt2Config& dimensions) { return common_keys(dimensions, "gpt2"); }

ModelConfig keys_of_family(const LlamaConfig& dimensions) {
  ModelConfig keys = common_keys(dimensions, "llama");
  keys.kv_heads = dimensions.kv_heads;
  keys.hidden = dimensions.hidden;
  keys.rope_theta = dimensions.rope_theta;
  keys.norm_epsilon = dimensions.norm_epsilon;
  keys.tied = dimensions.tied ? "true" : "false";
  const RopeScaling& scaling = dimensions.rope_scaling;
  keys.rope_scaling = scaling.factor;
  if (scaling.factor == 1.0) return keys;  // the others do not count
  keys.rope_low_freq_factor = scaling.low_frequency;
  keys.rope_high_freq_factor = scaling.high_frequency;
  keys.rope_original_context = scaling.original_context;
  return keys;
}

}  // namespace

Dimensions dimensions_of(const ModelConfig& config) {
  if (config.family == "gpt2") return common_dimensions<Gpt2Config>(config);
  LlamaConfig dimensions = common_dimensions<LlamaConfig>(config);
  change(config.kv_heads, dimensions.kv_heads);
  change(config.hidden, dimensions.hidden);
  change(config.rope_theta, dimensions.rope_theta);
  change(config.rope_scaling, dimensions.rope_scaling.factor);
  change(config.rope_low_freq_factor, dimensions.rope_scaling.low_frequency);
  change(config.rope_high_freq_factor, dimensions.rope_scaling.high_frequency);
  change(config.rope_original_context, dimensions.rope_scaling.original_context);
  change(config.norm_epsilon, dimensions.norm_epsilon);
  if (config.tied != "preset") dimensions.tied = config.tied == "true";
  return dimensions;
}

ModelConfig keys_for(const Dimensions& dimensions) {
  return std::visit([](const auto& of) { return keys_of_family(of); }, dimensions);
}

}  // namespace tessera::cli
