#include "src/nn/block_shapes.h"

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

NormPass norm_of(const TransformerConfig& config, const BlockShapes& shapes) {
  return {.norm = config.norm, .rows = shapes.rows, .channels = config.channels, .type = config.type};
}

}  // namespace tessera::nn
