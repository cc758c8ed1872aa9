// What a transformer block keeps in memory, and where. Saved, per token: query, key and value, the output of
// attention, the residual stream between the halves, what the MLP's activation sees, and the log-sum-exp of
// each head; for GPT-2 that is 3 + 1 + 1 + 4 times `channels`. Recomputable are the outputs of both norms and
// of the activation, 1 + 1 + 4: making them reads and writes memory once, while the matmuls around it take
// tens of operations per element. Backward overwrites them with their gradients.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/linear.h"
#include "kernels/rotary.h"
#include "src/nn/norm.h"
#include "src/nn/transformer.h"

namespace tessera::nn {

std::int64_t qkv_channels(const TransformerConfig& config);
// Columns that the MLP's activation sees.
std::int64_t up_channels(const TransformerConfig& config);

// The shapes of every op in a block, for one microbatch.
struct BlockShapes {
  kernels::AttentionShape attention;
  kernels::RotaryShape rotary;
  kernels::LinearShape qkv, projection, up, down;
  std::int64_t rows = 0;
  // Of [tokens, columns]:
  std::int64_t narrow_bytes = 0;  // channels
  std::int64_t qkv_bytes = 0;     // query, key and value
  std::int64_t up_bytes = 0;      // what the activation sees
  std::int64_t hidden_bytes = 0;  // what it gives

  BlockShapes(const TransformerConfig& config, const BatchShape& batch);
};

// Offsets in `saved`.
struct BlockSaved {
  std::int64_t qkv = 0;            // [tokens, qkv channels], rotated
  std::int64_t attention = 0;      // [tokens, channels]
  std::int64_t log_sum_exp = 0;    // [sequences, heads, length] fp32
  std::int64_t middle = 0;         // [tokens, channels]: the input plus the attention half
  std::int64_t preactivation = 0;  // [tokens, up channels]
  std::int64_t bytes = 0;

  explicit BlockSaved(const BlockShapes& shapes);
};

// Offsets of what backward makes besides. `attention` and `qkv` lie over `up`, which it is done with when it
// comes to attention.
struct BlockGradients {
  std::int64_t up = 0;         // [tokens, up channels]
  std::int64_t attention = 0;  // [tokens, channels]
  std::int64_t qkv = 0;        // [tokens, qkv channels]
  std::int64_t bytes = 0;

  explicit BlockGradients(const BlockShapes& shapes);
};

// Whether these lie over the recomputable `hidden`, rather than in the workspace: GELU's gradient takes the
// place of its output.
bool gradients_over_hidden(const TransformerConfig& config);
// Of them, in the workspace; the kernels' own scratch lies behind.
std::int64_t gradient_workspace_bytes(const TransformerConfig& config, const BlockShapes& shapes);
std::int64_t scratch_bytes(const TransformerConfig& config, const BlockShapes& shapes, const Target& target);

// Offsets in `recomputable`.
struct BlockRecomputable {
  struct NormOutput {
    std::int64_t normed = 0;  // [tokens, channels], then its gradient
    std::int64_t mean = 0;    // [tokens] fp32, as is the next
    std::int64_t rstd = 0;
  };
  NormOutput norm1, norm2;
  std::int64_t hidden = 0;  // [tokens, hidden]: output of the activation, then its gradient
  std::int64_t bytes = 0;

  BlockRecomputable(const TransformerConfig& config, const BlockShapes& shapes);
};

NormPass norm_of(const TransformerConfig& config, const BlockShapes& shapes);

}  // namespace tessera::nn
