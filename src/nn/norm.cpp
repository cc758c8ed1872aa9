#include "src/nn/norm.h"

#include <fmt/format.h>

#include "src/nn/support.h"

namespace tessera::nn {
namespace {

kernels::LayerNormShape layer_shape(const NormPass& pass) {
  return {.rows = pass.rows, .channels = pass.channels, .type = pass.type, .epsilon = pass.norm.epsilon};
}

kernels::RmsNormShape rms_shape(const NormPass& pass) {
  return {.rows = pass.rows, .channels = pass.channels, .type = pass.type, .epsilon = pass.norm.epsilon};
}

void layer_norm_backward(const ModuleContext& context, const kernels::ComputeContext& compute,
                         const NormPass& pass, std::size_t gain, const NormBackward& a) {
  const std::size_t bias = gain + 1;
  kernels::LayerNormBackward arguments = {.input = a.input,
                                          .mean = pass.mean,
                                          .rstd = pass.rstd,
                                          .gain = context.parameters[gain],
                                          .output_gradient = a.output_gradient,
                                          .residual_gradient = a.residual_gradient,
                                          .input_gradient = a.input_gradient,
                                          .gain_gradient = context.gradients[gain],
                                          .bias_gradient = context.gradients[bias],
                                          .beta = context.betas[gain]};
  if (context.betas[gain] != context.betas[bias]) {  // the kernel has one beta for both
    arguments.beta = 1.0f;
    const std::size_t fresh = context.betas[gain] == 0.0f ? gain : bias;
    if (context.gradients[fresh] != nullptr)
      kernels::fill(compute, pass.type, pass.channels, 0.0f, context.gradients[fresh]);
  }
  kernels::layer_norm_backward(compute, layer_shape(pass), arguments);
}

}  // namespace

std::string words_of(const Norm& norm) {
  return fmt::format("{} norm {}", norm.kind == NormKind::layer ? "layer" : "rms", norm.epsilon);
}

void add_norm(const Norm& norm, const std::string& prefix, std::int64_t channels, DType type,
              GradientOver gradient, std::vector<ParameterSpec>& specs) {
  for (std::size_t i = 0; i < parameters_of(norm); ++i)
    specs.push_back({.name = prefix + (i == 0 ? ".gain" : ".bias"),
                     .shape = {channels},
                     .dtype = type,
                     .group = kNoDecay,
                     .gradient = gradient});
}

void add_norm_initials(const Norm& norm, std::vector<Initial>& initials) {
  initials.push_back({Initial::Kind::constant, 1.0});
  if (norm.kind == NormKind::layer) initials.push_back({Initial::Kind::constant, 0.0});
}

void norm_forward(const ModuleContext& context, const kernels::ComputeContext& compute, const NormPass& pass,
                  std::size_t gain, const NormForward& a) {
  if (pass.norm.kind == NormKind::rms)
    return kernels::rms_norm_forward(compute, rms_shape(pass),
                                     {.input = a.input,
                                      .residual = a.residual,
                                      .sum = a.sum,
                                      .gain = context.parameters[gain],
                                      .output = a.output,
                                      .rstd = pass.rstd});
  kernels::layer_norm_forward(compute, layer_shape(pass),
                              {.input = a.input,
                               .residual = a.residual,
                               .sum = a.sum,
                               .gain = context.parameters[gain],
                               .bias = context.parameters[gain + 1],
                               .output = a.output,
                               .mean = pass.mean,
                               .rstd = pass.rstd});
}

std::int64_t norm_workspace_bytes(const NormPass& pass, const Target& target) {
  return pass.norm.kind == NormKind::rms
             ? kernels::rms_norm_backward_workspace_bytes(rms_shape(pass), target)
             : kernels::layer_norm_backward_workspace_bytes(layer_shape(pass), target);
}

void norm_backward(const ModuleContext& context, const kernels::ComputeContext& compute, const NormPass& pass,
                   std::size_t gain, const NormBackward& a) {
  if (pass.norm.kind == NormKind::layer) return layer_norm_backward(context, compute, pass, gain, a);
  kernels::rms_norm_backward(compute, rms_shape(pass),
                             {.input = a.input,
                              .rstd = pass.rstd,
                              .gain = context.parameters[gain],
                              .output_gradient = a.output_gradient,
                              .residual_gradient = a.residual_gradient,
                              .input_gradient = a.input_gradient,
                              .gain_gradient = context.gradients[gain],
                              .beta = context.betas[gain]});
}

}  // namespace tessera::nn
