// The end of a model: a linear layer without bias, softmax and cross-entropy. Also the logits of one row, for
// generation. Knows nothing of what comes before.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "tessera/module.h"

namespace tessera::nn {

// Bytes of scratch that the functions below need in their ComputeContext.
std::int64_t softmax_loss_workspace_bytes(const kernels::CrossEntropyShape& shape, const Target& target);

// Whether the weight's gradient is added up in fp32, apart from the gradient itself: a sum over chunks would
// lose bits in another type.
constexpr bool sums_in_fp32(DType type, std::int64_t chunks) { return type != DType::fp32 && chunks > 1; }

struct SoftmaxLoss {
  kernels::CrossEntropyShape shape;
  const void* input = nullptr;            // [rows, channels]
  const std::int32_t* targets = nullptr;  // [rows], −1 where not counted
  std::size_t weight = 0;   // index in the module's parameters of the weight [vocabulary, channels]
  float* losses = nullptr;  // [rows], scratch
  // [vocabulary, channels] fp32, overwritten: takes the weight's gradient in the place of the context's. For
  // weights that are not fp32, where shape.fp32_weight_gradient says so.
  float* weight_sum = nullptr;
};

// The logits of row `context.logits_row` of `input` [rows, channels]: `logits` [shape.vocabulary] fp32, in
// memory of the device.
void write_logits_row(const ModuleContext& context, const kernels::ComputeContext& compute,
                      const kernels::CrossEntropyShape& shape, const void* input, std::size_t weight,
                      float* logits);
std::int64_t logits_row_workspace_bytes(const kernels::CrossEntropyShape& shape, const Target& target);

// Adds to the context's loss and weight. Writes logits if the context asks for them.
void softmax_loss_evaluate(const ModuleContext& context, const kernels::ComputeContext& compute,
                           const SoftmaxLoss& arguments);

// Adds to the context's loss and weight. Writes the weight's gradient, where that is wanted, and
// `input_gradient` [rows, channels], which may be the input.
void softmax_loss_train(const ModuleContext& context, const kernels::ComputeContext& compute,
                        const SoftmaxLoss& arguments, void* input_gradient);

}  // namespace tessera::nn
