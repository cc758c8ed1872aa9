// The shapes of all ops of a transformer block.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/linear.h"
#include "kernels/rotary.h"
#include "src/nn/norm.h"
#include "src/nn/transformer.h"

namespace tessera::nn {

std::int64_t qkv_channels(const TransformerConfig& config);
// Columns of the input of the MLP's activation function.
std::int64_t up_channels(const TransformerConfig& config);

// The shapes of all ops in a block, for one microbatch.
struct BlockShapes {
  kernels::AttentionShape attention;
  kernels::RotaryShape rotary;
  kernels::LinearShape qkv, projection, up, down;
  std::int64_t rows = 0;
  // Bytes of a tensor [tokens, columns], with these columns:
  std::int64_t narrow_bytes = 0;  // channels
  std::int64_t qkv_bytes = 0;     // query, key and value
  std::int64_t up_bytes = 0;      // input of the activation function
  std::int64_t hidden_bytes = 0;  // output of the activation function

  BlockShapes(const TransformerConfig& config, const BatchShape& batch);
};

NormPass norm_of(const TransformerConfig& config, const BlockShapes& shapes);

}  // namespace tessera::nn
