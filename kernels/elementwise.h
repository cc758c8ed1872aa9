// Elementwise ops on compute tensors. The same bits for any thread count and instruction set.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// output = gelu(input), in the form of GPT-2: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and
// Gimpel 2016). output may be input.
void gelu_forward(const ComputeContext& context, DType type, std::int64_t numel, const void* input,
                  void* output);

// input_gradient = output_gradient * gelu'(input). input_gradient may be output_gradient or input.
void gelu_backward(const ComputeContext& context, DType type, std::int64_t numel, const void* input,
                   const void* output_gradient, void* input_gradient);

// Tensors [rows, columns] and bias_gradient [columns], all of one type.
struct GeluBackwardBias {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  DType type = DType::fp32;
  const void* input = nullptr;
  const void* output_gradient = nullptr;
  void* input_gradient = nullptr;  // may be output_gradient or input
  float beta = 0.0f;               // for bias_gradient
  void* bias_gradient = nullptr;
};

// gelu_backward, and the gradient of the bias that is in `input`: the column sums of input_gradient + beta *
// bias_gradient. The bits are those of gelu_backward and column_sum (column_sum.h), without the latter's pass
// over the memory.
std::int64_t gelu_backward_bias_workspace_bytes(std::int64_t rows, std::int64_t columns,
                                                const Target& target);
void gelu_backward_bias(const ComputeContext& context, const GeluBackwardBias& arguments);

// output = a + b, rounded once. output may be a or b, and a may be b. fp16 is allowed.
void add(const ComputeContext& context, DType type, std::int64_t numel, const void* a, const void* b,
         void* output);

// output = value everywhere. fp16 is allowed.
void fill(const ComputeContext& context, DType type, std::int64_t numel, float value, void* output);

// output = input, byte by byte.
void copy_bytes(const ComputeContext& context, std::int64_t bytes, const void* input, void* output);

// Some columns of a matrix: `rows` times `row_bytes` bytes. Each row begins `input_stride` bytes behind the
// one before it, and `output_stride` bytes in the output.
struct CopyShape {
  std::int64_t rows = 0;
  std::int64_t row_bytes = 0;
  std::int64_t input_stride = 0;
  std::int64_t output_stride = 0;
};

// output row = input row, byte by byte. What lies between the output's rows stays as it is. Input and output
// must not overlap. UsageError naming the stride that is less than row_bytes.
void copy_rows(const ComputeContext& context, const CopyShape& shape, const void* input, void* output);

}  // namespace tessera::kernels
