// Causal multi-head attention that never stores the matrix of probabilities: forward keeps one log-sum-exp
// per row. On CUDA a head has at most 128 channels.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "kernels/dropout.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// qkv [batch, sequence, qkv_channels()]: a row is query [heads, head_channels()], then key, then value, each
// [kv_heads, head_channels()]. With fewer kv_heads than heads (grouped-query attention, Ainslie et al. 2023)
// query head h reads key and value head h / (heads / kv_heads).
struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  std::int64_t channels = 0;  // of the output, a multiple of heads
  std::int64_t heads = 0;
  DType type = DType::fp32;
  std::int64_t kv_heads = 0;  // divides heads; 0: as many as heads
  // Dropout of the probabilities. Each query head is one matrix, each query a row, each key an element.
  Dropout dropout = {};

  std::int64_t kv_heads_or_heads() const { return kv_heads > 0 ? kv_heads : heads; }
  std::int64_t head_channels() const { return channels / heads; }
  std::int64_t qkv_channels() const { return channels + 2 * kv_heads_or_heads() * head_channels(); }
};

std::int64_t attention_forward_workspace_bytes(const AttentionShape& shape, const Target& target);

// output [batch, sequence, channels] = dropout(softmax(query key^T / sqrt(channels / heads), causal)) value;
// log_sum_exp [batch, heads, sequence] is that of the scaled scores. Tiled, with a running maximum (Dao et
// al. 2022). The same bits for any thread count.
void attention_forward(const ComputeContext& context, const AttentionShape& shape, const void* qkv,
                       void* output, float* log_sum_exp);

std::int64_t attention_backward_workspace_bytes(const AttentionShape& shape, const Target& target);

struct AttentionBackward {
  const void* qkv = nullptr;
  const void* output = nullptr;           // of forward
  const float* log_sum_exp = nullptr;     // of forward
  const void* output_gradient = nullptr;  // [batch, sequence, channels]
  void* qkv_gradient = nullptr;           // [batch, sequence, qkv_channels()], overwritten
};

// The same bits for any thread count. Threads share the work by key and value heads and batch items.
void attention_backward(const ComputeContext& context, const AttentionShape& shape,
                        const AttentionBackward& arguments);

}  // namespace tessera::kernels
