// Where the adapters of a block's linear layers lie. A layer here may be several of Hugging Face's, rows
// below rows: queries, keys and values, or gate and up. An adapter is on its rows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/lora.h"

namespace tessera::nn {

struct TransformerConfig;

// The linear layers of a block, in their order there.
enum class BlockLayer : std::uint8_t { qkv, projection, up, down };
inline constexpr BlockLayer kBlockLayers[] = {BlockLayer::qkv, BlockLayer::projection, BlockLayer::up,
                                              BlockLayer::down};

// A layer of Hugging Face's model that can have an adapter.
struct LoraTarget {
  std::string_view name;  // as PEFT's users write it: "q_proj"
  std::string_view path;  // in a layer of the model: "self_attn.q_proj"
  BlockLayer layer = BlockLayer::qkv;
  int segment = -1;  // of the layer's rows: queries, keys, values; gate, up; −1: all
};
const std::vector<LoraTarget>& lora_table(std::string_view family);

// An adapter: the rows of the layer's weight that it is on, and its target.
struct LoraSegment {
  const LoraTarget* target = nullptr;
  std::int64_t first = 0, rows = 0;
};

// The rows of a layer's weight that tensor ranks cut one by one: queries, keys and values; gate and up.
std::vector<std::int64_t> segments_of(const TransformerConfig& config, BlockLayer layer);
// The adapters of a layer, by ascending rows; empty where it has none. Its two parameters hold all of them,
// rows below rows: lora_a [adapters · rank, inputs] and lora_b [rows of the segments, rank].
std::vector<LoraSegment> lora_segments(const TransformerConfig& config, BlockLayer layer);
// "attention.qkv": what the layer's parameters are called within a block.
std::string_view name_of(const TransformerConfig& config, BlockLayer layer);
// Columns and rows of the layer's weight, of all tensor ranks.
std::int64_t inputs_of(const TransformerConfig& config, BlockLayer layer);
std::int64_t outputs_of(const TransformerConfig& config, BlockLayer layer);
// Whether tensor ranks split the layer's outputs; if not, its inputs.
constexpr bool splits_outputs(BlockLayer layer) {
  return layer == BlockLayer::qkv || layer == BlockLayer::up;
}

// ", adapters of rank 8 and scale 2 on q_proj, v_proj"; empty where there are none. For Module::numerics().
std::string words_of(const Lora& lora);

// Throws UsageError naming the field that is wrong, in a model of that name. Makes alpha and targets what
// they stand for.
Lora checked(const Lora& lora, std::string_view model);

}  // namespace tessera::nn
