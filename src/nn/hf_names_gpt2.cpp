// GPT-2: the matrices of blocks are "Conv1D" layers there, whose weight is [in, out].
#include <fmt/format.h>

#include "src/nn/hf_names.h"

namespace tessera::nn {
namespace {

void add_linear(const Shapes& shapes, const std::string& name, const std::string& parameter, WeightMap& map) {
  const std::string weight = parameter + ".weight";
  const Shape& shape = shapes.of(weight);
  map.tensors.push_back(
      {.name = name + ".weight", .shape = {shape[1], shape[0]}, .parameter = weight, .transposed = true});
  add_whole(shapes, name + ".bias", parameter + ".bias", map);
}

void add_norm(const Shapes& shapes, const std::string& name, const std::string& parameter, WeightMap& map) {
  add_whole(shapes, name + ".weight", parameter + ".gain", map);
  add_whole(shapes, name + ".bias", parameter + ".bias", map);
}

}  // namespace

WeightMap hf_gpt2(const Shapes& shapes) {
  WeightMap map{.tensors = {},
                .prefix = "transformer.",
                .copies = {{.name = "lm_head.weight", .of = "transformer.wte.weight"}},
                .ignored = {".attn.bias", ".attn.masked_bias"}};  // the causal mask
  add_tokens(shapes, "transformer.wte.weight", "embed.token", map);
  add_whole(shapes, "transformer.wpe.weight", "embed.position", map);
  for (std::int64_t layer = 0; layer < shapes.layers; ++layer) {
    const std::string name = fmt::format("transformer.h.{}.", layer);
    const std::string block = fmt::format("block.{}.", layer);
    add_norm(shapes, name + "ln_1", block + "norm1", map);
    add_linear(shapes, name + "attn.c_attn", block + "attention.qkv", map);
    add_linear(shapes, name + "attn.c_proj", block + "attention.projection", map);
    add_norm(shapes, name + "ln_2", block + "norm2", map);
    add_linear(shapes, name + "mlp.c_fc", block + "mlp.up", map);
    add_linear(shapes, name + "mlp.c_proj", block + "mlp.down", map);
  }
  add_norm(shapes, "transformer.ln_f", "head.norm", map);
  return map;
}

}  // namespace tessera::nn
