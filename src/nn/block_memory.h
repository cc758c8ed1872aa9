// The memory of a transformer block. Saved per token are query, key and value, the output of attention, the
// residual stream between the two halves, the input of the MLP's activation function, and the log-sum-exp of
// each head. For GPT-2 that is 3 + 1 + 1 + 4 times `channels`. Recomputable are the outputs of both norms and
// of the activation function, 1 + 1 + 4 times `channels`. To compute these reads and writes memory once,
// while the matmuls around them take tens of operations per element. Backward overwrites them with their
// gradients.
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

// Byte offsets in ModuleContext::saved.
struct BlockSaved {
  std::int64_t qkv = 0;            // [tokens, qkv channels], rotated
  std::int64_t attention = 0;      // [tokens, channels]
  std::int64_t log_sum_exp = 0;    // [sequences, heads, length] fp32
  std::int64_t middle = 0;         // [tokens, channels]: input + output of the attention half
  std::int64_t preactivation = 0;  // [tokens, up channels]
  std::int64_t bytes = 0;

  explicit BlockSaved(const BlockShapes& shapes);
};

// Byte offsets of further gradients in backward. `attention` and `qkv` share memory with `up`, which backward
// no longer needs when it reaches attention.
struct BlockGradients {
  std::int64_t up = 0;         // [tokens, up channels]
  std::int64_t attention = 0;  // [tokens, channels]
  std::int64_t qkv = 0;        // [tokens, qkv channels]
  std::int64_t bytes = 0;

  explicit BlockGradients(const BlockShapes& shapes);
};

// Whether BlockGradients share memory with the recomputable `hidden`, instead of being in the workspace:
// GELU's gradient takes the place of its output.
bool gradients_over_hidden(const TransformerConfig& config);
// gradient_workspace_bytes(): the bytes of BlockGradients in the workspace. scratch_bytes(): the bytes of the
// kernels' scratch, which follows them.
std::int64_t gradient_workspace_bytes(const TransformerConfig& config, const BlockShapes& shapes);
std::int64_t scratch_bytes(const TransformerConfig& config, const BlockShapes& shapes, const Target& target);

// Byte offsets in ModuleContext::recomputable.
struct BlockRecomputable {
  struct NormOutput {
    std::int64_t normed = 0;  // [tokens, channels], later its gradient
    std::int64_t mean = 0;    // [tokens] fp32, like the next
    std::int64_t rstd = 0;
  };
  NormOutput norm1, norm2;
  std::int64_t hidden = 0;  // [tokens, hidden]: output of the activation function, later its gradient
  std::int64_t bytes = 0;

  BlockRecomputable(const TransformerConfig& config, const BlockShapes& shapes);
};

NormPass norm_of(const TransformerConfig& config, const BlockShapes& shapes);

}  // namespace tessera::nn
