// Layer normalisation over the last dim, fused with the residual addition of a transformer.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// Tensors [rows, channels]; gain and bias [channels]; mean and rstd [rows].
struct LayerNormShape {
  std::int64_t rows = 0;
  std::int64_t channels = 0;
  DType type = DType::fp32;
  float epsilon = 1e-5f;
};

struct LayerNormForward {
  const void* input = nullptr;
  const void* residual = nullptr;  // optional, together with `sum`: normalises input + residual
  void* sum = nullptr;             // input + residual, rounded; this is then normalised. May be input or
                                   // residual
  const void* gain = nullptr;
  const void* bias = nullptr;
  void* output = nullptr;  // may be `input` if there is no residual
  float* mean = nullptr;   // written; backward needs both
  float* rstd = nullptr;
};

// output = (x - mean) * rstd * gain + bias, rstd = 1 / sqrt(variance + epsilon), variance over `channels`.
// The same bits for any thread count and instruction set.
void layer_norm_forward(const ComputeContext& context, const LayerNormShape& shape,
                        const LayerNormForward& arguments);

std::int64_t layer_norm_backward_workspace_bytes(const LayerNormShape& shape, const Target& target);

struct LayerNormBackward {
  const void* input = nullptr;  // what forward normalised: its input or its sum
  const float* mean = nullptr;
  const float* rstd = nullptr;
  const void* gain = nullptr;
  const void* output_gradient = nullptr;
  const void* residual_gradient = nullptr;  // optional: added to input_gradient before the one rounding
  // May be output_gradient or residual_gradient. Null: only the gradients below, which do not need the gain.
  void* input_gradient = nullptr;
  void* gain_gradient = nullptr;  // [channels], optional together with bias_gradient
  void* bias_gradient = nullptr;  // [channels]
  float beta = 0.0f;              // for gain_gradient and bias_gradient
};

// The same bits for any thread count and instruction set.
void layer_norm_backward(const ComputeContext& context, const LayerNormShape& shape,
                         const LayerNormBackward& arguments);

}  // namespace tessera::kernels
