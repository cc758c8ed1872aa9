// The head of a language model: a linear layer and cross-entropy in one op. It works on chunks of rows, so
// that the logits of all rows never exist at once. Logits are fp32. For sampling, use linear_forward to get
// logits.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "kernels/step_block.h"
#include "tessera/dtype.h"
#include "tessera/loss_total.h"

namespace tessera::kernels {

// input [rows, channels], weight [vocabulary, channels], targets [rows] int32, -1 = not counted.
struct CrossEntropyShape {
  std::int64_t rows = 0;
  std::int64_t channels = 0;
  std::int64_t vocabulary = 0;
  DType type = DType::fp32;
  // Most bytes of one chunk's fp32 logits; a chunk has at least one row. 0: kCpuChunkBytes on the CPU,
  // kGpuChunkRows rows on a GPU.
  std::int64_t chunk_bytes = 0;
  // The gradient of the weight is fp32, whatever the type. Summed over chunks it then loses nothing.
  bool fp32_weight_gradient = false;

  static constexpr std::int64_t kCpuChunkBytes = 64 << 20;
  // Each chunk reads and writes the weight's gradient: 8 bytes an element in fp32, against 2 operations for
  // each row. An H100 does 300 operations in the time of one byte, so below 1200 rows it is limited by
  // memory.
  static constexpr std::int64_t kGpuChunkRows = 2048;
};

std::int64_t cross_entropy_workspace_bytes(const CrossEntropyShape& shape, const Target& target);

using CrossEntropyLoss = LossTotal;  // rows whose target is not -1 are counted

// losses [rows] = log-sum-exp(logits) - logits[target], 0 where not counted. `total`, in memory of the
// device, is overwritten. If a target is neither -1 nor in the vocabulary, the CPU throws UsageError naming
// it; CUDA makes the row's loss and gradients NaN, and so the total.
void cross_entropy_forward(const ComputeContext& context, const CrossEntropyShape& shape, const void* input,
                           const void* weight, const std::int32_t* targets, float* losses,
                           CrossEntropyLoss* total);

struct CrossEntropyForwardBackward {
  const void* input = nullptr;
  const void* weight = nullptr;
  const std::int32_t* targets = nullptr;
  float scale = 1.0f;                 // gradients are those of scale * (sum of losses)
  const float* scale_at = nullptr;    // on CUDA, where not null, has the scale in memory of the device
  float* losses = nullptr;            // [rows]
  CrossEntropyLoss* total = nullptr;  // in memory of the device
  void* input_gradient = nullptr;     // [rows, channels], overwritten; 0 where not counted; may be input
  void* weight_gradient = nullptr;    // [vocabulary, channels], optional, see fp32_weight_gradient
  float weight_beta = 0.0f;
};

// Computes losses and both gradients in one pass, with the logits computed once. Sums within a chunk are
// fp32; a bf16 weight_gradient is rounded once for each chunk.
void cross_entropy_forward_backward(const ComputeContext& context, const CrossEntropyShape& shape,
                                    const CrossEntropyForwardBackward& arguments);

}  // namespace tessera::kernels
