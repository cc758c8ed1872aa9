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

void write_logits(const ModuleContext& context, const kernels::ComputeContext& compute,
                  const SoftmaxLoss& arguments) {
  const kernels::CrossEntropyShape& shape = arguments.shape;
  if (context.logits_row < 0 || context.logits_row >= shape.rows)
    throw UsageError(
        fmt::format("logits_row is {}; the batch has rows 0 to {}", context.logits_row, shape.rows - 1));
  const void* row = at(arguments.input, context.logits_row * shape.channels * bytes_of(shape.type));
  kernels::matmul(compute, one_row(shape), row, context.parameters[arguments.weight], nullptr,
                  context.logits);
}

}  // namespace

std::int64_t softmax_loss_workspace_bytes(const kernels::CrossEntropyShape& shape, const Target& target) {
  return std::max(kernels::cross_entropy_workspace_bytes(shape, target),
                  kernels::matmul_workspace_bytes(one_row(shape), target));
}

void softmax_loss_evaluate(const ModuleContext& context, const kernels::ComputeContext& compute,
                           const SoftmaxLoss& arguments) {
  if (context.total != nullptr)
    kernels::cross_entropy_forward(compute, arguments.shape, arguments.input,
                                   context.parameters[arguments.weight], arguments.targets, arguments.losses,
                                   context.total);
  if (context.logits != nullptr) write_logits(context, compute, arguments);
}

void softmax_loss_train(const ModuleContext& context, const kernels::ComputeContext& compute,
                        const SoftmaxLoss& arguments, void* input_gradient) {
  kernels::cross_entropy_forward_backward(compute, arguments.shape,
                                          {.input = arguments.input,
                                           .weight = context.parameters[arguments.weight],
                                           .targets = arguments.targets,
                                           .scale = context.loss_scale,
                                           .losses = arguments.losses,
                                           .total = context.total,
                                           .input_gradient = input_gradient,
                                           .weight_gradient = context.gradients[arguments.weight],
                                           .weight_beta = context.betas[arguments.weight]});
}

}  // namespace tessera::nn
