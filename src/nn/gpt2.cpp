#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "src/nn/gpt2_modules.h"
#include "src/nn/support.h"
#include "tessera/error.h"
#include "tessera/model.h"

namespace tessera {
namespace {

struct Preset {
  std::string_view name;
  Gpt2Config config;
};

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

void nn::check_gpt2_shape(const Gpt2Config& config, const BatchShape& shape) {
  check_dim("gpt2", "sequences of a microbatch", shape.sequences);
  if (shape.length < 1 || shape.length > config.context)
    throw UsageError(fmt::format("gpt2: length of a microbatch is {}; it must be 1 to context, which is {}",
                                 shape.length, config.context));
  check_dim("gpt2", "sequences times length of a microbatch", shape.tokens());
}

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
  Model model;
  model.name = "gpt2";
  model.vocabulary = config.vocabulary;
  model.max_length = config.context;
  model.batch_bytes = [](const BatchShape& shape) {
    return 2 * shape.tokens() * static_cast<std::int64_t>(sizeof(std::int32_t));
  };
  model.names.emplace_back("embed");
  model.modules.push_back(nn::make_gpt2_embed(config, type));
  for (std::int64_t index = 0; index < config.layers; ++index) {
    model.names.push_back(fmt::format("block.{}", index));
    model.modules.push_back(nn::make_gpt2_block(config, type, index));
  }
  model.names.emplace_back("head");
  model.modules.push_back(nn::make_gpt2_head(config, type));
  return model;
}

}  // namespace tessera
