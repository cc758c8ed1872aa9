// Token embedding and optional position embedding, forward and backward.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// tokens [batch, sequence] int32, token_table [vocabulary, channels], position_table [>= sequence, channels].
struct EmbeddingShape {
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  std::int64_t channels = 0;
  std::int64_t vocabulary = 0;
  std::int64_t positions = 0;  // rows of position_table; 0: no table. Rows from `sequence` on get no gradient
  DType type = DType::fp32;
};

// output [batch, sequence, channels] = token_table[token] + position_table[place in the sequence].
// position_table is null if and only if shape.positions is 0; then the rows are copied. For a token outside
// the vocabulary the CPU throws UsageError naming it. CUDA writes a row of NaN, because the host does not see
// the tokens.
void embedding_forward(const ComputeContext& context, const EmbeddingShape& shape, const std::int32_t* tokens,
                       const void* token_table, const void* position_table, void* output);

std::int64_t embedding_backward_workspace_bytes(const EmbeddingShape& shape, const Target& target);

struct EmbeddingBackward {
  const std::int32_t* tokens = nullptr;
  const void* output_gradient = nullptr;  // [batch, sequence, channels]
  void* token_gradient = nullptr;         // [vocabulary, channels], optional
  float token_beta = 0.0f;                // 0 also zeroes the rows of tokens that do not occur
  void* position_gradient = nullptr;      // [positions, channels], optional
  float position_beta = 0.0f;
};

// Each table row is summed in fp32 in row order and rounded once. The same bits for any thread count. CUDA
// skips tokens outside the vocabulary; their output was NaN.
void embedding_backward(const ComputeContext& context, const EmbeddingShape& shape,
                        const EmbeddingBackward& arguments);

}  // namespace tessera::kernels
