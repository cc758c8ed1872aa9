// Root-mean-square normalisation over the last dim (Zhang and Sennrich 2019), fused with the residual
// addition of a transformer. layer_norm.h has the form with a mean and a bias.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// Tensors [rows, channels]; gain [channels]; rstd [rows].
struct RmsNormShape {
  std::int64_t rows = 0;
  std::int64_t channels = 0;
  DType type = DType::fp32;
  float epsilon = 1e-5f;
};

struct RmsNormForward {
  const void* input = nullptr;
  const void* residual = nullptr;  // optional, together with `sum`: normalises input + residual
  void* sum = nullptr;             // input + residual, rounded; this is then normalised. May be input or
                                   // residual
  const void* gain = nullptr;
  void* output = nullptr;  // may be `input` if there is no residual
  float* rstd = nullptr;   // written; backward needs it
};

// output = x * rstd * gain, rstd = 1 / sqrt(mean(x^2) + epsilon), rounded once. The same bits for any thread
// count and instruction set.
void rms_norm_forward(const ComputeContext& context, const RmsNormShape& shape,
                      const RmsNormForward& arguments);

std::int64_t rms_norm_backward_workspace_bytes(const RmsNormShape& shape, const Target& target);

struct RmsNormBackward {
  const void* input = nullptr;  // what forward normalised: its input or its sum
  const float* rstd = nullptr;
  const void* gain = nullptr;
  const void* output_gradient = nullptr;
  const void* residual_gradient = nullptr;  // optional: added to input_gradient before the one rounding
  // May be output_gradient or residual_gradient. Null: only the gradients below, which do not need the gain.
  void* input_gradient = nullptr;
  void* gain_gradient = nullptr;  // [channels], optional
  float beta = 0.0f;              // for gain_gradient
};

// The same bits for any thread count and instruction set.
void rms_norm_backward(const ComputeContext& context, const RmsNormShape& shape,
                       const RmsNormBackward& arguments);

}  // namespace tessera::kernels
