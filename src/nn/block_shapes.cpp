#include "src/nn/block_shapes.h"

#include "src/nn/support.h"

namespace tessera::nn {

std::int64_t qkv_channels(const TransformerConfig& config) {
  return config.channels + 2 * config.kv_heads * (config.channels / config.heads);
}

std::int64_t up_channels(const TransformerConfig& config) {
  return config.mlp == MlpKind::swiglu ? 2 * config.hidden : config.hidden;
}

BlockShapes::BlockShapes(const TransformerConfig& config, const BatchShape& batch, int ranks)
    : tensor_ranks(ranks),
      rows(batch.tokens()),
      stream_rows(part_of(config.model, "tokens of a microbatch", rows, ranks)),
      hidden(part_of(config.model, "hidden", config.hidden, ranks)) {
  const auto linear = [&](std::int64_t in, std::int64_t out) {
    return kernels::LinearShape{.rows = rows, .in = in, .out = out, .type = config.type};
  };
  const std::int64_t heads = part_of(config.model, "heads", config.heads, ranks);
  const std::int64_t kv_heads = part_of(config.model, "kv_heads", config.kv_heads, ranks);
  const std::int64_t head_channels = config.channels / config.heads;
  const std::int64_t channels = heads * head_channels;
  attention = {.batch = batch.sequences,
               .sequence = batch.length,
               .channels = channels,
               .heads = heads,
               .type = config.type,
               .kv_heads = kv_heads,
               .dropout = {.threshold = config.attention_dropout}};
  rotary = {.batch = batch.sequences,
            .sequence = batch.length,
            .heads = heads + kv_heads,
            .head_channels = head_channels,
            .row_numel = qkv_channels(config) / ranks,
            .type = config.type};
  qkv = linear(config.channels, qkv_channels(config) / ranks);
  projection = linear(channels, config.channels);
  up = linear(config.channels, up_channels(config) / ranks);
  down = linear(hidden, config.channels);
  const std::int64_t column_bytes = rows * bytes_of(config.type);
  stream_bytes = stream_rows * config.channels * bytes_of(config.type);
  whole_bytes = column_bytes * config.channels;
  sum_bytes = stream_rows * config.channels * bytes_of(DType::fp32);
  heads_bytes = column_bytes * channels;
  qkv_bytes = column_bytes * qkv.out;
  up_bytes = column_bytes * up.out;
  hidden_bytes = column_bytes * hidden;
}

NormPass norm_of(const TransformerConfig& config, const BlockShapes& shapes) {
  return {.norm = config.norm, .rows = shapes.stream_rows, .channels = config.channels, .type = config.type};
}

}  // namespace tessera::nn
