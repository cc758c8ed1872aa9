#include <fmt/format.h>

#include <array>
#include <cmath>

#include "src/nn/support.h"
#include "src/nn/transformer.h"
#include "tessera/error.h"
#include "tessera/model.h"

namespace tessera {
namespace {

struct Preset {
  std::string_view name;
  Gpt2Config config;
};

constexpr double kDeviation = 0.02;  // of the initial weights

constexpr std::array<Preset, 5> kPresets = {{
    {"gpt2-tiny", {.vocabulary = 256, .context = 256, .layers = 6, .heads = 6, .channels = 384}},
    {"gpt2-124m", {.vocabulary = 50257, .context = 1024, .layers = 12, .heads = 12, .channels = 768}},
    {"gpt2-355m", {.vocabulary = 50257, .context = 1024, .layers = 24, .heads = 16, .channels = 1024}},
    {"gpt2-774m", {.vocabulary = 50257, .context = 1024, .layers = 36, .heads = 20, .channels = 1280}},
    {"gpt2-1558m", {.vocabulary = 50257, .context = 1024, .layers = 48, .heads = 25, .channels = 1600}},
}};

void check_config(const Gpt2Config& config) {
  nn::check_dim("gpt2", "vocabulary", config.vocabulary);
  nn::check_dim("gpt2", "context", config.context);
  nn::check_dim("gpt2", "layers", config.layers);
  nn::check_dim("gpt2", "heads", config.heads);
  nn::check_dim("gpt2", "channels", config.channels);
  if (config.channels % config.heads != 0)
    throw UsageError(fmt::format("gpt2: channels is {}; it must be a multiple of heads, which is {}",
                                 config.channels, config.heads));
}

}  // namespace

Gpt2Config Gpt2Config::preset(std::string_view name) {
  for (const Preset& preset : kPresets)
    if (preset.name == name) return preset.config;
  throw UsageError(fmt::format("model '{}' is not known; use one of {}", name, fmt::join(presets(), ", ")));
}

std::vector<std::string> Gpt2Config::presets() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

Model make_gpt2(const Gpt2Config& config, DType type) {
  check_config(config);
  nn::check_type("gpt2", type);
  return nn::make_transformer(
      {.model = "gpt2",
       .type = type,
       .vocabulary = config.vocabulary,
       .context = config.context,
       .channels = config.channels,
       .heads = config.heads,
       .kv_heads = config.heads,
       .hidden = 4 * config.channels,
       .norm = {.kind = nn::NormKind::layer, .epsilon = 1e-5f},
       .mlp = nn::MlpKind::gelu,
       .deviation = kDeviation,
       .residual_deviation = kDeviation / std::sqrt(2.0 * static_cast<double>(config.layers))},
      config.layers);
}

}  // namespace tessera
