// Token embedding and optional position embedding, forward and backward. Ranks may split the token table by
// rows: each then looks up what it has (embedding_forward_partial), their rows are added, and add_positions()
// ends the sum with the bits of embedding_forward() on one rank.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// tokens [batch, sequence] int32, token_table [table_rows, channels], position_table [>= sequence, channels].
struct EmbeddingShape {
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  std::int64_t channels = 0;
  std::int64_t vocabulary = 0;
  std::int64_t positions = 0;  // rows of position_table; 0: no table. Rows from `sequence` on get no gradient
  DType type = DType::fp32;
  // The table has the rows of the tokens [first_token, first_token + table_rows). Those of tokens from
  // `vocabulary` on are padding.
  std::int64_t first_token = 0;
  std::int64_t table_rows = 0;  // 0: vocabulary; then first_token is 0

  constexpr std::int64_t table_rows_or_all() const { return table_rows > 0 ? table_rows : vocabulary; }
  constexpr bool has_all_tokens() const { return first_token == 0 && table_rows_or_all() >= vocabulary; }
};

// output [batch, sequence, channels] = token_table[token] + position_table[place in the sequence].
// position_table is null if and only if shape.positions is 0; then the rows are copied. For a token outside
// the vocabulary the CPU throws UsageError naming it. CUDA writes a row of NaN, because the host does not see
// the tokens. A token of the vocabulary that the table does not have gives a row of -0, which changes no bit
// of what it is added to; a table that lacks some goes without a position table, else UsageError.
void embedding_forward(const ComputeContext& context, const EmbeddingShape& shape, const std::int32_t* tokens,
                       const void* token_table, const void* position_table, void* output);

// output [batch, sequence, channels] = token_table[token] in fp32, whatever the type; a row of -0 for a token
// that the table does not have. shape.positions is ignored. Wrong tokens as in embedding_forward().
void embedding_forward_partial(const ComputeContext& context, const EmbeddingShape& shape,
                               const std::int32_t* tokens, const void* token_table, float* output);

// Rows [first_row, first_row + rows) of [batch * sequence]: sum, output [rows, channels]. position_table
// [>= sequence, channels]. Output and table have the type.
struct PositionShape {
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t sequence = 0;
  std::int64_t channels = 0;
  DType type = DType::fp32;
};

// output[r] = sum[r] + position_table[(first_row + r) mod sequence], rounded once. In fp32 output may be sum.
// Without a position table, finish_sum() of linear.h ends the sum.
void add_positions(const ComputeContext& context, const PositionShape& shape, const float* sum,
                   const void* position_table, void* output);

std::int64_t embedding_backward_workspace_bytes(const EmbeddingShape& shape, const Target& target);

struct EmbeddingBackward {
  const std::int32_t* tokens = nullptr;
  const void* output_gradient = nullptr;  // [batch, sequence, channels]
  void* token_gradient = nullptr;         // [table_rows, channels], optional
  float token_beta = 0.0f;                // 0 also zeroes padding and the rows of tokens that do not occur
  void* position_gradient = nullptr;      // [positions, channels], optional
  float position_beta = 0.0f;
};

// Each table row is summed in fp32 in row order and rounded once. The same bits for any thread count, and for
// any rows that the table has: tokens that it does not have are skipped. CUDA also skips tokens outside the
// vocabulary; their output was NaN.
void embedding_backward(const ComputeContext& context, const EmbeddingShape& shape,
                        const EmbeddingBackward& arguments);

}  // namespace tessera::kernels
