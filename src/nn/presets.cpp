// The dimensions of well-known models.
#include <fmt/format.h>

#include <array>

#include "tessera/error.h"
#include "tessera/model.h"

namespace tessera {
namespace {

template <class Config>
struct Preset {
  std::string_view name;
  Config config;
};

constexpr std::array<Preset<Gpt2Config>, 6> kGpt2 = {{
    {"gpt2-tiny", {.vocabulary = 256, .context = 256, .layers = 6, .heads = 6, .channels = 384}},
    {"gpt2-124m", {.vocabulary = 50257, .context = 1024, .layers = 12, .heads = 12, .channels = 768}},
    {"gpt2-355m", {.vocabulary = 50257, .context = 1024, .layers = 24, .heads = 16, .channels = 1024}},
    {"gpt2-774m", {.vocabulary = 50257, .context = 1024, .layers = 36, .heads = 20, .channels = 1280}},
    {"gpt2-1558m", {.vocabulary = 50257, .context = 1024, .layers = 48, .heads = 25, .channels = 1600}},
    {"gpt3-175b", {.vocabulary = 50257, .context = 2048, .layers = 96, .heads = 96, .channels = 12288}},
}};

constexpr RopeScaling kLlama32Scaling = {.factor = 32.0};

constexpr std::array<Preset<LlamaConfig>, 8> kLlama = {{
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

std::vector<std::string> names_of(const auto& presets) {
  std::vector<std::string> names;
  names.reserve(presets.size());
  for (const auto& preset : presets) names.emplace_back(preset.name);
  return names;
}

auto find(const auto& presets, std::string_view name) {
  for (const auto& preset : presets)
    if (preset.name == name) return preset.config;
  throw UsageError(
      fmt::format("model '{}' is not known; use one of {}", name, fmt::join(names_of(presets), ", ")));
}

}  // namespace

Gpt2Config Gpt2Config::preset(std::string_view name) { return find(kGpt2, name); }
std::vector<std::string> Gpt2Config::presets() { return names_of(kGpt2); }

LlamaConfig LlamaConfig::preset(std::string_view name) { return find(kLlama, name); }
std::vector<std::string> LlamaConfig::presets() { return names_of(kLlama); }

}  // namespace tessera
