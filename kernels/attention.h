// Causal multi-head attention that never holds the probabilities: forward keeps a log-sum-exp per row.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// qkv [batch, sequence, 3 * channels]: query, key and value beside each other, each [heads, channels /
// heads].
struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  std::int64_t channels = 0;  // a multiple of heads
  std::int64_t heads = 0;
  DType type = DType::fp32;
};

std::int64_t attention_forward_workspace_bytes(const AttentionShape& shape, int threads);

// output [batch, sequence, channels] = softmax(query key^T / sqrt(channels / heads), causal) value;
// log_sum_exp [batch, heads, sequence] of the scaled scores. Tiled with a running maximum (Dao et al. 2022).
// The same bits for any thread count.
void attention_forward(const ComputeContext& context, const AttentionShape& shape, const void* qkv,
                       void* output, float* log_sum_exp);

std::int64_t attention_backward_workspace_bytes(const AttentionShape& shape, int threads);

struct AttentionBackward {
  const void* qkv = nullptr;
  const void* output = nullptr;           // of forward
  const float* log_sum_exp = nullptr;     // of forward
  const void* output_gradient = nullptr;  // [batch, sequence, channels]
  void* qkv_gradient = nullptr;           // [batch, sequence, 3 * channels], overwritten
};

// The same bits for any thread count.
void attention_backward(const ComputeContext& context, const AttentionShape& shape,
                        const AttentionBackward& arguments);

}  // namespace tessera::kernels
