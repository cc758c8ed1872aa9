#include "src/nn/softmax_loss.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/nn/regions.h"
#include "tessera/error.h"

namespace tessera::nn {
namespace {

// Logits are fp32 whatever the weights are.
kernels::MatmulShape one_row(const kernels::CrossEntropyShape& shape) {
  return {.m = 1,
          .n = shape.vocabulary,
          .k = shape.channels,
          .transpose_b = true,
          .input_type = shape.type,
          .output_type = DType::fp32};
}

}  // namespace

void write_logits_row(const ModuleContext& context, const kernels::ComputeContext& compute,
                      const kernels::CrossEntropyShape& shape, const void* input, std::size_t weight,
                      float* logits) {
  if (context.logits_row < 0 || context.logits_row >= shape.rows)
    throw UsageError(
        fmt::format("logits_row is {}; the batch has rows 0 to {}", context.logits_row, shape.rows - 1));
  if (shape.vocabulary == 0) return;
  const void* row = at(input, context.logits_row * shape.channels * bytes_of(shape.type));
  kernels::matmul(compute, one_row(shape), row, context.parameters[weight], nullptr, logits);
}

std::int64_t logits_row_workspace_bytes(const kernels::CrossEntropyShape& shape, const Target& target) {
  return kernels::matmul_workspace_bytes(one_row(shape), target);
}

std::int64_t softmax_loss_workspace_bytes(const kernels::CrossEntropyShape& shape, const Target& target) {
  return std::max(kernels::cross_entropy_workspace_bytes(shape, target),
                  logits_row_workspace_bytes(shape, target));
}

void softmax_loss_evaluate(const ModuleContext& context, const kernels::ComputeContext& compute,
                           const SoftmaxLoss& arguments) {
  if (context.total != nullptr)
    kernels::cross_entropy_forward(
        compute, arguments.shape, arguments.input, context.parameters[arguments.weight], arguments.targets,
        context.losses != nullptr ? context.losses : arguments.losses, context.total);
  if (context.logits != nullptr)
    write_logits_row(context, compute, arguments.shape, arguments.input, arguments.weight, context.logits);
}

void softmax_loss_train(const ModuleContext& context, const kernels::ComputeContext& compute,
                        const SoftmaxLoss& arguments, void* input_gradient) {
  const bool sums = arguments.shape.fp32_weight_gradient;
  kernels::cross_entropy_forward_backward(
      compute, arguments.shape,
      {.input = arguments.input,
       .weight = context.parameters[arguments.weight],
       .targets = arguments.targets,
       .scale = context.loss_scale,
       .scale_at = context.loss_scale_at,
       .losses = arguments.losses,
       .total = context.total,
       .input_gradient = input_gradient,
       .weight_gradient = sums ? arguments.weight_sum : context.gradients[arguments.weight],
       .weight_beta = sums ? 0.0f : context.betas[arguments.weight]});
}

}  // namespace tessera::nn
