#include <fmt/format.h>

#include <array>
#include <cmath>

#include "kernels/rotary_math.h"
#include "src/nn/support.h"
#include "src/nn/transformer.h"
#include "tessera/error.h"
#include "tessera/model.h"

namespace tessera {
namespace {

struct Preset {
  std::string_view name;
  LlamaConfig config;
};

constexpr RopeScaling kLlama32Scaling = {.factor = 32.0};

constexpr std::array<Preset, 8> kPresets = {{
    {"llama-tiny",
     {.vocabulary = 256,
      .context = 256,
      .layers = 6,
      .heads = 6,
      .kv_heads = 2,
      .channels = 384,
      .hidden = 1024}},
    {"llama-160m",
     {.vocabulary = 32000,
      .context = 2048,
      .layers = 12,
      .heads = 12,
      .kv_heads = 12,
      .channels = 768,
      .hidden = 3072,
      .norm_epsilon = 1e-6}},
    {"llama-1b",
     {.vocabulary = 128256,
      .context = 131072,
      .layers = 16,
      .heads = 32,
      .kv_heads = 8,
      .channels = 2048,
      .hidden = 8192,
      .rope_theta = 500000.0,
      .tied = true,
      .rope_scaling = kLlama32Scaling}},
    {"llama-3b",
     {.vocabulary = 128256,
      .context = 131072,
      .layers = 28,
      .heads = 24,
      .kv_heads = 8,
      .channels = 3072,
      .hidden = 8192,
      .rope_theta = 500000.0,
      .tied = true,
      .rope_scaling = kLlama32Scaling}},
    {"llama-7b",
     {.vocabulary = 32000,
      .context = 4096,
      .layers = 32,
      .heads = 32,
      .kv_heads = 32,
      .channels = 4096,
      .hidden = 11008}},
    {"llama-8b",
     {.vocabulary = 128256,
      .context = 8192,
      .layers = 32,
      .heads = 32,
      .kv_heads = 8,
      .channels = 4096,
      .hidden = 14336,
      .rope_theta = 500000.0}},
    {"llama-13b",
     {.vocabulary = 32000,
      .context = 4096,
      .layers = 40,
      .heads = 40,
      .kv_heads = 40,
      .channels = 5120,
      .hidden = 13824}},
    {"llama-70b",
     {.vocabulary = 32000,
      .context = 4096,
      .layers = 80,
      .heads = 64,
      .kv_heads = 8,
      .channels = 8192,
      .hidden = 28672}},
}};

void require(bool holds, std::string_view field, double value, std::string_view rule) {
  if (!holds) throw UsageError(fmt::format("llama: {} is {}; it must be {}", field, value, rule));
}

void check_scaling(const RopeScaling& scaling) {
  const auto finite_from = [](double value, double least) { return std::isfinite(value) && value >= least; };
  require(finite_from(scaling.factor, 1.0), "rope_scaling.factor", scaling.factor, "1 or more");
  nn::check_dim("llama", "rope_scaling.original_context", scaling.original_context);
  require(std::isfinite(scaling.low_frequency) && scaling.low_frequency > 0.0, "rope_scaling.low_frequency",
          scaling.low_frequency, "above 0");
  require(std::isfinite(scaling.high_frequency) && scaling.high_frequency > scaling.low_frequency,
          "rope_scaling.high_frequency", scaling.high_frequency, "above rope_scaling.low_frequency");
}

void check_config(const LlamaConfig& config) {
  nn::check_dim("llama", "vocabulary", config.vocabulary);
  nn::check_dim("llama", "context", config.context);
  nn::check_dim("llama", "layers", config.layers);
  nn::check_dim("llama", "heads", config.heads);
  nn::check_dim("llama", "kv_heads", config.kv_heads);
  nn::check_dim("llama", "channels", config.channels);
  nn::check_dim("llama", "hidden", config.hidden);
  if (config.channels % (2 * config.heads) != 0)
    throw UsageError(
        fmt::format("llama: channels is {}; it must be an even multiple of heads, which is {}, because "
                    "channels are rotated in pairs",
                    config.channels, config.heads));
  if (config.heads % config.kv_heads != 0)
    throw UsageError(fmt::format("llama: kv_heads is {}; it must divide heads, which is {}", config.kv_heads,
                                 config.heads));
  require(std::isfinite(config.rope_theta) && config.rope_theta > 1.0, "rope_theta", config.rope_theta,
          "above 1");
  require(config.norm_epsilon > 0.0 && config.norm_epsilon < 1.0, "norm_epsilon", config.norm_epsilon,
          "between 0 and 1");
  check_scaling(config.rope_scaling);
}

std::vector<float> frequencies_of(const LlamaConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  return kernels::rotary_frequencies(config.channels / config.heads, config.rope_theta,
                                     {.factor = scaling.factor,
                                      .low_frequency = scaling.low_frequency,
                                      .high_frequency = scaling.high_frequency,
                                      .original_context = static_cast<double>(scaling.original_context)});
}

}  // namespace

LlamaConfig LlamaConfig::preset(std::string_view name) {
  for (const Preset& preset : kPresets)
    if (preset.name == name) return preset.config;
  throw UsageError(fmt::format("model '{}' is not known; use one of {}", name, fmt::join(presets(), ", ")));
}

std::vector<std::string> LlamaConfig::presets() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

Model make_llama(const LlamaConfig& config, DType type) {
  check_config(config);
  nn::check_type("llama", type);
  return nn::make_transformer(
      {.model = "llama",
       .type = type,
       .vocabulary = config.vocabulary,
       .context = config.context,
       .channels = config.channels,
       .heads = config.heads,
       .kv_heads = config.kv_heads,
       .hidden = config.hidden,
       .norm = {.kind = nn::NormKind::rms, .epsilon = static_cast<float>(config.norm_epsilon)},
       .mlp = nn::MlpKind::swiglu,
       .biases = false,
       .learned_positions = false,
       .rotary = frequencies_of(config),
       .tied = config.tied},
      config.layers);
}

}  // namespace tessera
