// Cross-entropy where ranks split the vocabulary: each has the logits' columns of its own tokens. A chunk of
// rows takes these steps:
//  1. linear_forward_partial() with logits_layer() makes a rank's logits;
//  2. softmax_statistics() makes three numbers of each of its rows;
//  3. the caller gathers the statistics of all ranks;
//  4. softmax_gradients() makes losses of them and puts gradients in the place of the logits, or
//     softmax_losses() makes losses alone;
//  5. linear_backward_input_partial() and linear_backward_weight() with gradients_layer() read the gradients.
// Behind the last chunk total_loss() adds the losses up. cross_entropy.h does all of it where one rank has
// the whole vocabulary; given the same logits, one rank gets its bits here, too: of the losses, the total and
// the gradients.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/context.h"
#include "kernels/linear.h"
#include "kernels/step_block.h"
#include "tessera/dtype.h"
#include "tessera/loss_total.h"
#include "tessera/shape.h"

namespace tessera::kernels {

// A rank's logits of a chunk of rows. Column c is token first_column + c. Columns of tokens from `vocabulary`
// on are padding: nothing depends on their logits.
struct SoftmaxShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t first_column = 0;
  std::int64_t vocabulary = 0;  // of all ranks
  int ranks = 1;
  DType type = DType::fp32;  // of the model, and so of the gradients; logits are fp32

  // Columns that are not padding.
  constexpr std::int64_t counted_columns() const {
    return std::clamp<std::int64_t>(vocabulary - first_column, 0, columns);
  }
};

// Elements from one row of logits to the next. On a GPU rows are padded, so that each begins aligned.
constexpr std::int64_t logits_stride(const SoftmaxShape& shape, DeviceType device) {
  return device == DeviceType::cpu ? shape.columns : round_up(shape.columns, 64);
}
constexpr std::int64_t logits_bytes(const SoftmaxShape& shape, DeviceType device) {
  return shape.rows * logits_stride(shape, device) * 4;
}
// Elements from one row of gradients to the next. On a GPU each lies where its row of logits began.
constexpr std::int64_t gradients_stride(const SoftmaxShape& shape, DeviceType device) {
  return device == DeviceType::cpu ? shape.columns : logits_stride(shape, device) * 4 / bytes_of(shape.type);
}

// The layer whose output are the logits.
constexpr LinearShape logits_layer(const SoftmaxShape& shape, std::int64_t channels, DeviceType device) {
  return {.rows = shape.rows,
          .in = channels,
          .out = shape.columns,
          .type = shape.type,
          .out_stride = logits_stride(shape, device)};
}
// The same layer for backward, which reads their gradients.
constexpr LinearShape gradients_layer(const SoftmaxShape& shape, std::int64_t channels, DeviceType device) {
  LinearShape layer = logits_layer(shape, channels, device);
  layer.out_stride = gradients_stride(shape, device);
  return layer;
}

// What a rank says of its logits of one row, padding left out. A rank that has only padding has {-infinity,
// 0, 0}, and a row that is not counted may have any.
struct SoftmaxStatistics {
  float maximum;       // of the logits
  float sum;           // of e^(logit - maximum)
  float target_logit;  // 0 where another rank has the target
};
static_assert(sizeof(SoftmaxStatistics) == 3 * sizeof(float));  // ranks gather them as fp32

// statistics [rows] of logits [rows, columns], whose rows are logits_stride() apart. targets [rows] int32,
// -1 = not counted. If a target is neither -1 nor in the vocabulary, the CPU throws UsageError naming it;
// CUDA makes the row's loss and gradients NaN, and so the total.
void softmax_statistics(const ComputeContext& context, const SoftmaxShape& shape, const float* logits,
                        const std::int32_t* targets, SoftmaxStatistics* statistics);

struct SoftmaxGradients {
  const SoftmaxStatistics* statistics = nullptr;  // [ranks, rows]
  const std::int32_t* targets = nullptr;          // [rows]
  float scale = 1.0f;                             // gradients are those of scale * (sum of losses)
  const float* scale_at = nullptr;                // on CUDA, where not null, has it in memory of the device
  // [rows, columns]: their gradients, in shape.type and with rows gradients_stride() apart, take their place.
  float* logits = nullptr;
  float* losses = nullptr;  // [rows]
};

// Gradients of each column, 0 of padding and of rows that are not counted, rounded once. Losses as in
// softmax_losses(). Statistics are combined in the order of the ranks, so all ranks get the same bits of
// losses.
void softmax_gradients(const ComputeContext& context, const SoftmaxShape& shape,
                       const SoftmaxGradients& arguments);

// losses [rows] = log-sum-exp(all ranks' logits) - logits[target], 0 where not counted. statistics
// [ranks, rows]; the shape's columns do not matter.
void softmax_losses(const ComputeContext& context, const SoftmaxShape& shape,
                    const SoftmaxStatistics* statistics, const std::int32_t* targets, float* losses);

// The total of the losses of counted rows, such as of all chunks, in the order in which cross_entropy.h adds
// them. `total`, in memory of the device, is overwritten.
void total_loss(const ComputeContext& context, std::int64_t rows, const std::int32_t* targets,
                const float* losses, LossTotal* total);

}  // namespace tessera::kernels
