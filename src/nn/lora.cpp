#include "src/nn/lora.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/nn/block_shapes.h"
#include "src/nn/support.h"
#include "src/nn/transformer.h"
#include "tessera/error.h"

namespace tessera {

std::vector<std::string> lora_targets(std::string_view family) {
  std::vector<std::string> names;
  for (const nn::LoraTarget& target : nn::lora_table(family)) names.emplace_back(target.name);
  return names;
}

std::vector<std::string> lora_default_targets(std::string_view family) {
  nn::lora_table(family);  // its check
  return family == "gpt2" ? std::vector<std::string>{"c_attn"} : std::vector<std::string>{"q_proj", "v_proj"};
}

std::vector<std::string> lora_layers(std::string_view family, const std::vector<std::string>& targets,
                                     std::string_view key) {
  const std::vector<nn::LoraTarget>& table = nn::lora_table(family);
  const auto names = [](const nn::LoraTarget& layer, const std::string& target) {
    return target == kAllLinear || layer.name == target || layer.path == target ||
           layer.path.ends_with("." + target);
  };
  for (const std::string& target : targets)
    if (std::ranges::none_of(table, [&](const auto& layer) { return names(layer, target); }))
      throw UsageError(fmt::format(
          "{} has \"{}\", which is no linear layer in the blocks of {}; there are {}, and \"{}\" for all",
          key, target, family, fmt::join(lora_targets(family), ", "), kAllLinear));
  std::vector<std::string> layers;
  for (const nn::LoraTarget& layer : table)
    if (std::ranges::any_of(targets, [&](const std::string& target) { return names(layer, target); }))
      layers.emplace_back(layer.name);
  return layers;
}

namespace nn {

const std::vector<LoraTarget>& lora_table(std::string_view family) {
  using enum BlockLayer;
  static const std::vector<LoraTarget> gpt2 = {{"c_attn", "attn.c_attn", qkv},
                                               {"attn.c_proj", "attn.c_proj", projection},
                                               {"c_fc", "mlp.c_fc", up},
                                               {"mlp.c_proj", "mlp.c_proj", down}};
  static const std::vector<LoraTarget> llama = {
      {"q_proj", "self_attn.q_proj", qkv, 0}, {"k_proj", "self_attn.k_proj", qkv, 1},
      {"v_proj", "self_attn.v_proj", qkv, 2}, {"o_proj", "self_attn.o_proj", projection},
      {"gate_proj", "mlp.gate_proj", up, 0},  {"up_proj", "mlp.up_proj", up, 1},
      {"down_proj", "mlp.down_proj", down}};
  if (family == "gpt2") return gpt2;
  if (family == "llama") return llama;
  throw UsageError(fmt::format("lora: model '{}' has no adapters; gpt2 and llama can have them", family));
}

std::vector<std::int64_t> segments_of(const TransformerConfig& config, BlockLayer layer) {
  const std::int64_t kv_channels = config.kv_heads * (config.channels / config.heads);
  switch (layer) {
    case BlockLayer::qkv:
      return {config.channels, kv_channels, kv_channels};
    case BlockLayer::up:
      return std::vector<std::int64_t>(config.mlp == MlpKind::swiglu ? 2 : 1, config.hidden);
    default:
      return {config.channels};
  }
}

std::vector<LoraSegment> lora_segments(const TransformerConfig& config, BlockLayer layer) {
  std::vector<LoraSegment> segments;
  if (config.lora.rank == 0) return segments;
  const std::vector<std::int64_t> rows = segments_of(config, layer);
  for (const LoraTarget& target : lora_table(config.model)) {
    const auto& wanted = config.lora.targets;
    if (target.layer != layer || std::ranges::find(wanted, target.name) == wanted.end()) continue;
    if (target.segment < 0) {
      segments.push_back({&target, 0, outputs_of(config, layer)});
    } else {
      const auto at = rows.begin() + target.segment;
      segments.push_back({&target, std::accumulate(rows.begin(), at, std::int64_t{0}), *at});
    }
  }
  return segments;
}

std::string_view name_of(const TransformerConfig& config, BlockLayer layer) {
  switch (layer) {
    case BlockLayer::qkv:
      return "attention.qkv";
    case BlockLayer::projection:
      return "attention.projection";
    case BlockLayer::up:
      return config.mlp == MlpKind::swiglu ? "mlp.gate_up" : "mlp.up";
    default:
      return "mlp.down";
  }
}

std::int64_t inputs_of(const TransformerConfig& config, BlockLayer layer) {
  return layer == BlockLayer::down ? config.hidden : config.channels;
}

std::int64_t outputs_of(const TransformerConfig& config, BlockLayer layer) {
  const std::vector<std::int64_t> rows = segments_of(config, layer);
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

std::string words_of(const Lora& lora) {
  if (lora.rank == 0) return "";
  return fmt::format(", adapters of rank {} and scale {} on {}", lora.rank, lora.scale(),
                     fmt::join(lora.targets, ", "));
}

Lora checked(const Lora& lora, std::string_view model) {
  constexpr std::int64_t kMostRank = 1 << 16;
  if (lora.rank < 0 || lora.rank > kMostRank)
    throw UsageError(
        fmt::format("{}: lora.rank is {}; it must be 0, for none, to {}", model, lora.rank, kMostRank));
  if (!std::isfinite(lora.alpha) || lora.alpha < 0.0)
    throw UsageError(
        fmt::format("{}: lora.alpha is {}; it must be 0, for the rank, or more", model, lora.alpha));
  if (lora.rank == 0) return {};
  return {.rank = lora.rank,
          .alpha = lora.alpha == 0.0 ? static_cast<double>(lora.rank) : lora.alpha,
          .targets = lora_layers(model, lora.targets.empty() ? lora_default_targets(model) : lora.targets)};
}

}  // namespace nn
}  // namespace tessera
