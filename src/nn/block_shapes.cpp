#include "src/nn/block_shapes.h"

#include <fmt/format.h>

#include "src/nn/support.h"
#include "tessera/error.h"

namespace tessera::nn {

std::int64_t qkv_channels(const TransformerConfig& config) {
  return config.channels + 2 * config.kv_heads * (config.channels / config.heads);
}

std::int64_t up_channels(const TransformerConfig& config) {
  return config.mlp == MlpKind::swiglu ? 2 * config.hidden : config.hidden;
}

namespace {

// Ranks that share each head of keys and of values.
std::int64_t ranks_of_head(const TransformerConfig& config, std::int64_t head_channels, int ranks) {
  if (ranks % config.kv_heads != 0)
    throw UsageError(
        fmt::format("{}: mesh.tensor is {}, but kv_heads is {}; one of them must be a multiple of the other",
                    config.model, ranks, config.kv_heads));
  const std::int64_t sharing = ranks / config.kv_heads;
  if (head_channels % sharing != 0)
    throw UsageError(fmt::format(
        "{}: mesh.tensor is {} and kv_heads is {}, so {} ranks share each head of keys and values; "
        "its channels, {}, must be a multiple of that",
        config.model, ranks, config.kv_heads, sharing, head_channels));
  return sharing;
}

}  // namespace

BlockSplit split_of(const TransformerConfig& config, int tensor_ranks) {
  if (tensor_ranks == 1) return BlockSplit::none;
  return config.kv_heads % tensor_ranks == 0 ? BlockSplit::heads : BlockSplit::head_parts;
}

BlockShapes::BlockShapes(const TransformerConfig& config, const BatchShape& batch, int ranks)
    : split(split_of(config, ranks)),
      tensor_ranks(ranks),
      rows(batch.tokens()),
      stream_rows(part_of(config.model, "tokens of a microbatch", rows, ranks)),
      hidden(part_of(config.model, "hidden", config.hidden, ranks)) {
  const auto linear = [&](std::int64_t in, std::int64_t out) {
    return kernels::LinearShape{.rows = rows, .in = in, .out = out, .type = config.type};
  };
  const std::int64_t heads = part_of(config.model, "heads", config.heads, ranks);
  const std::int64_t head_channels = config.channels / config.heads;
  const std::int64_t channels = heads * head_channels;
  std::int64_t kv_heads = config.kv_heads / ranks;
  if (split == BlockSplit::head_parts) {
    kv_heads = 1;
    head_ranks = ranks_of_head(config, head_channels, ranks);
    part_channels = head_channels / head_ranks;
  }
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
            .row_numel = attention.qkv_channels(),
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
  qkv_bytes = column_bytes * attention.qkv_channels();
  own_qkv_bytes = column_bytes * qkv.out;
  part_bytes = column_bytes * 2 * part_channels;
  up_bytes = column_bytes * up.out;
  hidden_bytes = column_bytes * hidden;
}

NormPass norm_of(const TransformerConfig& config, const BlockShapes& shapes) {
  return {.norm = config.norm, .rows = shapes.stream_rows, .channels = config.channels, .type = config.type};
}

}  // namespace tessera::nn
