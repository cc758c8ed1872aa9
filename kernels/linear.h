// A linear layer, y = x W^T + b, forward and backward, made of matmul.h.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// input [rows, in], weight [out, in], bias [out], output [rows, out], all of one type.
struct LinearShape {
  std::int64_t rows = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;
  DType type = DType::fp32;
};

// Bytes of workspace that are enough for every function of this header, with or without bias and with beta 0
// or 1.
std::int64_t linear_workspace_bytes(const LinearShape& shape, const Target& target);

// output = input weight^T + bias; `bias` optional.
void linear_forward(const ComputeContext& context, const LinearShape& shape, const void* input,
                    const void* weight, const void* bias, void* output);

// preactivation = input weight^T + bias, output = gelu(preactivation), both [rows, out]; `bias` optional.
// gelu is applied to the rounded preactivation, so gelu_forward on the stored preactivation gives the same
// bits.
void linear_gelu_forward(const ComputeContext& context, const LinearShape& shape, const void* input,
                         const void* weight, const void* bias, void* preactivation, void* output);

// input_gradient [rows, in] = output_gradient weight + beta * input_gradient.
void linear_backward_input(const ComputeContext& context, const LinearShape& shape,
                           const void* output_gradient, const void* weight, float beta, void* input_gradient);

// weight_gradient [out, in] = output_gradient^T input + beta * weight_gradient.
void linear_backward_weight(const ComputeContext& context, const LinearShape& shape,
                            const void* output_gradient, const void* input, float beta,
                            void* weight_gradient);

// bias_gradient [out] = column sums of output_gradient + beta * bias_gradient. The same bits for any thread
// count.
void linear_backward_bias(const ComputeContext& context, const LinearShape& shape,
                          const void* output_gradient, float beta, void* bias_gradient);

}  // namespace tessera::kernels
