#include "src/nn/block_memory.h"

#include <algorithm>

#include "src/nn/regions.h"

namespace tessera::nn {

std::int64_t qkv_channels(const TransformerConfig& config) {
  return config.channels + 2 * config.kv_heads * (config.channels / config.heads);
}

std::int64_t up_channels(const TransformerConfig& config) {
  return config.mlp == MlpKind::swiglu ? 2 * config.hidden : config.hidden;
}

BlockShapes::BlockShapes(const TransformerConfig& config, const BatchShape& batch) : rows(batch.tokens()) {
  const auto linear = [&](std::int64_t in, std::int64_t out) {
    return kernels::LinearShape{.rows = rows, .in = in, .out = out, .type = config.type};
  };
  attention = {.batch = batch.sequences,
               .sequence = batch.length,
               .channels = config.channels,
               .heads = config.heads,
               .type = config.type,
               .kv_heads = config.kv_heads,
               .dropout = {.threshold = config.attention_dropout}};
  rotary = {.batch = batch.sequences,
            .sequence = batch.length,
            .heads = config.heads + config.kv_heads,
            .head_channels = config.channels / config.heads,
            .row_numel = qkv_channels(config),
            .type = config.type};
  qkv = linear(config.channels, qkv_channels(config));
  projection = linear(config.channels, config.channels);
  up = linear(config.channels, up_channels(config));
  down = linear(config.hidden, config.channels);
  const std::int64_t column_bytes = rows * bytes_of(config.type);
  narrow_bytes = column_bytes * config.channels;
  qkv_bytes = column_bytes * qkv.out;
  up_bytes = column_bytes * up.out;
  hidden_bytes = column_bytes * config.hidden;
}

BlockSaved::BlockSaved(const BlockShapes& shapes) {
  Regions regions;
  qkv = regions.take(shapes.qkv_bytes);
  attention = regions.take(shapes.narrow_bytes);
  log_sum_exp = regions.take(shapes.rows * shapes.attention.heads * 4);
  middle = regions.take(shapes.narrow_bytes);
  preactivation = regions.take(shapes.up_bytes);
  bytes = regions.bytes();
}

BlockGradients::BlockGradients(const BlockShapes& shapes) {
  Regions of_mlp, of_attention;
  up = of_mlp.take(shapes.up_bytes);
  attention = of_attention.take(shapes.narrow_bytes);
  qkv = of_attention.take(shapes.qkv_bytes);
  bytes = std::max(of_mlp.bytes(), of_attention.bytes());
}

bool gradients_over_hidden(const TransformerConfig& config) { return config.mlp == MlpKind::gelu; }

std::int64_t gradient_workspace_bytes(const TransformerConfig& config, const BlockShapes& shapes) {
  return gradients_over_hidden(config) ? 0 : BlockGradients(shapes).bytes;
}

BlockRecomputable::BlockRecomputable(const TransformerConfig& config, const BlockShapes& shapes) {
  Regions regions;
  for (NormOutput* norm : {&norm1, &norm2}) {
    norm->normed = regions.take(shapes.narrow_bytes);
    if (config.norm.kind == NormKind::layer) norm->mean = regions.take(shapes.rows * 4);
    norm->rstd = regions.take(shapes.rows * 4);
  }
  hidden =
      regions.take(gradients_over_hidden(config) ? std::max(shapes.hidden_bytes, BlockGradients(shapes).bytes)
                                                 : shapes.hidden_bytes);
  bytes = regions.bytes();
}

NormPass norm_of(const TransformerConfig& config, const BlockShapes& shapes) {
  return {.norm = config.norm, .rows = shapes.rows, .channels = config.channels, .type = config.type};
}

std::int64_t scratch_bytes(const TransformerConfig& config, const BlockShapes& shapes, const Target& target) {
  kernels::AttentionShape evaluated = shapes.attention;  // without dropout, which may choose another kernel
  evaluated.dropout = {};
  return std::max({kernels::linear_workspace_bytes(shapes.qkv, target),
                   kernels::linear_workspace_bytes(shapes.projection, target),
                   kernels::linear_workspace_bytes(shapes.up, target),
                   kernels::linear_workspace_bytes(shapes.down, target),
                   kernels::attention_forward_workspace_bytes(shapes.attention, target),
                   kernels::attention_forward_workspace_bytes(evaluated, target),
                   kernels::attention_backward_workspace_bytes(shapes.attention, target),
                   config.rotary.empty() ? 0 : kernels::rotary_workspace_bytes(shapes.rotary),
                   norm_workspace_bytes(norm_of(config, shapes), target)});
}

}  // namespace tessera::nn
