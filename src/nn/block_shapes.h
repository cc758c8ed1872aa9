// The shapes of all ops of a transformer block, of one rank.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cached_attention.h"
#include "kernels/linear.h"
#include "kernels/rotary.h"
#include "src/nn/norm.h"
#include "src/nn/transformer.h"

namespace tessera::nn {

// How tensor ranks share a block.
enum class BlockSplit : std::uint8_t {
  none,       // one rank has all of it
  heads,      // each has heads of queries, of keys and of values
  head_parts  // each has heads of queries, and a part of one head of keys and of values: there are fewer of
              // these
};
BlockSplit split_of(const TransformerConfig& config, int tensor_ranks);

// The shapes of all ops in a block, for one microbatch. Inside the layers a tensor rank has its share of the
// heads, and of the MLP's columns, for all rows. Between them, in the residual stream, it has its share of
// the rows or, where the sequence is not parallel, all of them.
struct BlockShapes {
  BlockSplit split = BlockSplit::none;
  kernels::AttentionShape attention;
  kernels::CachedAttentionShape cached;  // capacity 0: no keys and values are kept
  kernels::RotaryShape rotary;
  kernels::LinearShape qkv, projection, up, down;
  std::int64_t tensor_ranks = 1;
  int chunks = 1;                // of rows, in which values are exchanged
  std::int64_t rows = 0;         // tokens
  std::int64_t own_rows = 0;     // this rank's of these
  std::int64_t stream_rows = 0;  // that it has of the residual stream
  std::int64_t hidden = 0;       // columns of the activation function's output
  // Where the split is head_parts, so many ranks read the same head of keys and of values, and each makes so
  // many channels of either.
  std::int64_t head_ranks = 1;
  std::int64_t part_channels = 0;
  // Bytes of a tensor [rows, channels] with these rows, and of an fp32 one with this rank's own.
  std::int64_t stream_bytes = 0;
  std::int64_t own_bytes = 0;
  std::int64_t whole_bytes = 0;
  std::int64_t sum_bytes = 0;
  // Bytes of a tensor [tokens, columns], with these columns:
  std::int64_t heads_bytes = 0;    // channels of the heads
  std::int64_t qkv_bytes = 0;      // query, key and value, whole heads of each
  std::int64_t own_qkv_bytes = 0;  // what this rank's product makes of them
  std::int64_t part_bytes = 0;     // this rank's parts of keys and values
  std::int64_t up_bytes = 0;       // input of the activation function
  std::int64_t hidden_bytes = 0;   // output of the activation function

  // Throws UsageError where the ranks, or chunks, cannot have equal parts.
  BlockShapes(const TransformerConfig& config, const BatchShape& batch, const Target& target);
  const kernels::LinearShape& of(BlockLayer layer) const;
  // The same of one chunk's rows, for what goes row by row: all but attention.
  BlockShapes of_chunk(int chunk) const;
};

NormPass norm_of(const TransformerConfig& config, const BlockShapes& shapes);

}  // namespace tessera::nn
