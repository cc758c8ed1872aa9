// Llama: queries, keys and values are three tensors there, gate and up two; here they are one each, rows
// below rows.
#include <fmt/format.h>

#include "src/nn/hf_names.h"

namespace tessera::nn {
namespace {

// Rows [first, first + rows) of a matrix.
void add_rows(const Shapes& shapes, const std::string& name, const std::string& parameter, std::int64_t first,
              std::int64_t rows, WeightMap& map) {
  const std::int64_t columns = shapes.of(parameter)[1];
  map.tensors.push_back(
      {.name = name, .shape = {rows, columns}, .parameter = parameter, .begin = first * columns});
}

void add_block(const Shapes& shapes, const std::string& name, const std::string& block, WeightMap& map) {
  const std::string qkv = block + "attention.qkv.weight", gate_up = block + "mlp.gate_up.weight";
  const std::int64_t channels = shapes.of(qkv)[1];
  const std::int64_t shared = (shapes.of(qkv)[0] - channels) / 2;  // rows of keys, and of values
  const std::int64_t hidden = shapes.of(gate_up)[0] / 2;
  add_whole(shapes, name + "input_layernorm.weight", block + "norm1.gain", map);
  add_rows(shapes, name + "self_attn.q_proj.weight", qkv, 0, channels, map);
  add_rows(shapes, name + "self_attn.k_proj.weight", qkv, channels, shared, map);
  add_rows(shapes, name + "self_attn.v_proj.weight", qkv, channels + shared, shared, map);
  add_whole(shapes, name + "self_attn.o_proj.weight", block + "attention.projection.weight", map);
  add_whole(shapes, name + "post_attention_layernorm.weight", block + "norm2.gain", map);
  add_rows(shapes, name + "mlp.gate_proj.weight", gate_up, 0, hidden, map);
  add_rows(shapes, name + "mlp.up_proj.weight", gate_up, hidden, hidden, map);
  add_whole(shapes, name + "mlp.down_proj.weight", block + "mlp.down.weight", map);
}

}  // namespace

WeightMap hf_llama(const Shapes& shapes) {
  WeightMap map{.tensors = {}, .prefix = "model.", .copies = {}, .ignored = {".rotary_emb.inv_freq"}};
  add_tokens(shapes, "model.embed_tokens.weight", "embed.token", map);
  for (std::int64_t layer = 0; layer < shapes.layers; ++layer)
    add_block(shapes, fmt::format("model.layers.{}.", layer), fmt::format("block.{}.", layer), map);
  add_whole(shapes, "model.norm.weight", "head.norm.gain", map);
  if (shapes.has("head.weight"))
    add_tokens(shapes, "lm_head.weight", "head.weight", map);
  else
    map.copies.push_back({.name = "lm_head.weight", .of = "model.embed_tokens.weight"});
  return map;
}

}  // namespace tessera::nn
