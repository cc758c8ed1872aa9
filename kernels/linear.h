// A linear layer, y = x W^T + b, forward and backward, made of matmul.h. Where ranks split a layer, its sums
// are split over them, too: linear_forward_partial() gives a rank's part, finish_sum() ends what was added.
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
  // Elements from one row of the output, or of its gradient, to the next; 0: out. What lies between is
  // neither read nor written. linear_gelu_forward and linear_backward_bias throw UsageError for another than
  // 0 or out.
  std::int64_t out_stride = 0;
  // Whether the products multiply in fp8: each quantizes its two operands anew (matmul_fp8.h), the weight by
  // blocks of 128 by 128, inputs and gradients by 128 elements along what the product sums over. The type is
  // then bf16, and rows, in, out and out_stride are multiples of 16. Biases and their gradients are as ever.
  bool fp8 = false;
};

// Bytes of workspace that are enough for every function of this header but the partial ones, with or without
// bias and with beta 0 or 1.
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

// Bytes of workspace that are enough for the three partial functions, with beta 0 or 1.
std::int64_t linear_partial_workspace_bytes(const LinearShape& shape, const Target& target);

// output [rows, out] = input weight^T in fp32, whatever the type: a sum to which other ranks add theirs. In
// fp32 the bits of linear_forward without a bias.
void linear_forward_partial(const ComputeContext& context, const LinearShape& shape, const void* input,
                            const void* weight, float* output);

// input_gradient [rows, in] = output_gradient weight in fp32, whatever the type. In fp32 the bits of
// linear_backward_input with beta 0.
void linear_backward_input_partial(const ComputeContext& context, const LinearShape& shape,
                                   const void* output_gradient, const void* weight, float* input_gradient);

// weight_gradient [out, in] = output_gradient^T input + beta * weight_gradient in fp32, whatever the type: a
// sum to which other rows add theirs. In fp32 the bits of linear_backward_weight.
void linear_backward_weight_partial(const ComputeContext& context, const LinearShape& shape,
                                    const void* output_gradient, const void* input, float beta,
                                    float* weight_gradient);

// sum, output [rows, channels]; bias [channels]. Output and bias have the type.
struct SumShape {
  std::int64_t rows = 0;
  std::int64_t channels = 0;
  DType type = DType::fp32;
};

// output = sum + bias, rounded once; `bias` optional. In fp32 output may be sum. The same bits for any thread
// count and instruction set.
void finish_sum(const ComputeContext& context, const SumShape& shape, const float* sum, const void* bias,
                void* output);

// output = sum + beta * output, rounded once. In fp32 output must not be sum. The same bits for any thread
// count and instruction set.
void add_sum(const ComputeContext& context, const SumShape& shape, const float* sum, float beta,
             void* output);

}  // namespace tessera::kernels
