#include "src/nn/block_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/check_fp8.h"
#include "src/nn/support.h"
#include "tessera/error.h"

namespace tessera::nn {

namespace {

// The extents of each layer's products on a rank, in a chunk of rows.
void check_fp8(const TransformerConfig& config, const BlockShapes& shapes) {
  const BlockShapes of_chunk = shapes.of_chunk(0);
  for (const BlockLayer layer : kBlockLayers) {
    const kernels::LinearShape& shape = of_chunk.of(layer);
    if (!shape.fp8) continue;
    for (const auto& [what, value] :
         {std::pair("tokens", shape.rows), {"inputs", shape.in}, {"outputs", shape.out}})
      if (value % kernels::kFp8Multiple != 0)
        throw UsageError(fmt::format(
            "{}: fp8_products (precision.products) is set, and '{}' has {} {} on a rank (mesh.tensor "
            "{}, exchange_chunks {}); "
            "products in fp8 need a multiple of {}",
            config.model, name_of(config, layer), value, what, shapes.tensor_ranks, shapes.chunks,
            kernels::kFp8Multiple));
  }
}

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

BlockShapes::BlockShapes(const TransformerConfig& config, const BatchShape& batch, const Target& target)
    : split(split_of(config, target.tensor)),
      tensor_ranks(target.tensor),
      chunks(target.exchange_chunks),
      rows(batch.tokens()),
      own_rows(own_rows_of(config, batch, target)),
      stream_rows(stream_rows_of(config, batch, target)),
      hidden(part_of(config.model, "hidden", config.hidden, target.tensor)) {
  const int ranks = target.tensor;
  const std::int64_t of_chunk = rows / chunks;
  if (!config.rotary.empty() && of_chunk % batch.length != 0 && batch.length % of_chunk != 0)
    throw UsageError(
        fmt::format("{}: exchange_chunks is {}, which cuts {} sequences of {} tokens into chunks of {}; a "
                    "chunk must be whole "
                    "sequences, or a whole part of one",
                    config.model, chunks, batch.sequences, batch.length, of_chunk));
  const auto linear = [&](std::int64_t in, std::int64_t out) {
    return kernels::LinearShape{.rows = rows,
                                .in = in,
                                .out = out,
                                .type = config.type,
                                .fp8 = config.fp8_products && batch.cached == 0};
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
  cached = {.batch = batch.sequences,
            .rows = batch.length,
            .capacity = batch.cached,
            .channels = channels,
            .heads = heads,
            .type = config.type,
            .kv_heads = kv_heads};
  rotary = {.batch = batch.sequences,
            .sequence = batch.length,
            .heads = heads + kv_heads,
            .head_channels = head_channels,
            .row_numel = attention.qkv_channels(),
            .type = config.type};
  qkv = linear(config.channels, outputs_of(config, BlockLayer::qkv) / ranks);
  projection = linear(channels, config.channels);
  up = linear(config.channels, outputs_of(config, BlockLayer::up) / ranks);
  down = linear(hidden, config.channels);
  const std::int64_t column_bytes = rows * bytes_of(config.type);
  stream_bytes = stream_rows * config.channels * bytes_of(config.type);
  whole_bytes = column_bytes * config.channels;
  own_bytes = own_rows * config.channels * bytes_of(config.type);
  sum_bytes = own_rows * config.channels * bytes_of(DType::fp32);
  heads_bytes = column_bytes * channels;
  qkv_bytes = column_bytes * attention.qkv_channels();
  own_qkv_bytes = column_bytes * qkv.out;
  part_bytes = column_bytes * 2 * part_channels;
  up_bytes = column_bytes * up.out;
  hidden_bytes = column_bytes * hidden;
  check_fp8(config, *this);
}

const kernels::LinearShape& BlockShapes::of(BlockLayer layer) const {
  const kernels::LinearShape* const all[] = {&qkv, &projection, &up, &down};
  return *all[static_cast<std::size_t>(layer)];
}

BlockShapes BlockShapes::of_chunk(int chunk) const {
  BlockShapes part = *this;
  part.rows /= chunks;
  part.own_rows /= chunks;
  part.stream_rows /= chunks;
  for (kernels::LinearShape* shape : {&part.qkv, &part.projection, &part.up, &part.down})
    shape->rows = part.rows;
  const std::int64_t first = part.rows * chunk;
  part.rotary.batch = std::max<std::int64_t>(1, part.rows / rotary.sequence);
  part.rotary.sequence = std::min(part.rows, rotary.sequence);
  part.rotary.first_place = first % rotary.sequence;
  for (std::int64_t* bytes :
       {&part.stream_bytes, &part.own_bytes, &part.whole_bytes, &part.sum_bytes, &part.heads_bytes,
        &part.qkv_bytes, &part.own_qkv_bytes, &part.part_bytes, &part.up_bytes, &part.hidden_bytes})
    *bytes /= chunks;
  return part;
}

NormPass norm_of(const TransformerConfig& config, const BlockShapes& shapes) {
  return {.norm = config.norm, .rows = shapes.stream_rows, .channels = config.channels, .type = config.type};
}

}  // namespace tessera::nn
