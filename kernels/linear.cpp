#include "kernels/linear.h"

#include <algorithm>
#include <string>

#include "kernels/casts.h"
#include "kernels/check.h"
#include "kernels/column_sum.h"
#include "kernels/elementwise.h"
#include "kernels/matmul_fp8.h"
#include "kernels/round_sum.h"
#include "tessera/error.h"

namespace tessera::kernels {
namespace {

// The leading dim of the output. It is 0 where the output is dense, so that a product has one key.
std::int64_t leading_of(const LinearShape& s) { return s.out_stride == s.out ? 0 : s.out_stride; }

MatmulShape forward_shape(const LinearShape& s, bool bias) {
  return {.m = s.rows,
          .n = s.out,
          .k = s.in,
          .transpose_b = true,
          .ldc = leading_of(s),
          .input_type = s.type,
          .output_type = s.type,
          .bias = bias};
}

MatmulShape input_gradient_shape(const LinearShape& s, float beta) {
  return {.m = s.rows,
          .n = s.in,
          .k = s.out,
          .lda = leading_of(s),
          .input_type = s.type,
          .output_type = s.type,
          .beta = beta};
}

MatmulShape weight_gradient_shape(const LinearShape& s, float beta) {
  return {.m = s.out,
          .n = s.in,
          .k = s.rows,
          .transpose_a = true,
          .lda = leading_of(s),
          .input_type = s.type,
          .output_type = s.type,
          .beta = beta};
}

MatmulShape in_fp32(MatmulShape shape) {
  shape.output_type = DType::fp32;
  return shape;
}

// Where products are in fp8, a weight, which is only ever their second operand, is so by blocks.
constexpr Fp8Tiles kWeight = Fp8Tiles::blocks, kActivation = Fp8Tiles::vectors;

std::int64_t product_bytes(const LinearShape& s, const MatmulShape& product, Fp8Tiles second,
                           const Target& target) {
  return s.fp8 ? quantized_matmul_workspace_bytes(product, second, target)
               : matmul_workspace_bytes(product, target);
}

void multiply(const ComputeContext& context, const LinearShape& s, const MatmulShape& product,
              Fp8Tiles second, const void* a, const void* b, const void* bias, void* c) {
  if (s.fp8) return quantized_matmul(context, product, second, a, b, bias, c);
  matmul(context, product, a, b, bias, c);
}

void check_dense(const LinearShape& shape, const char* op) {
  if (shape.out_stride == 0 || shape.out_stride == shape.out) return;
  throw UsageError(std::string(op) + ": out_stride is " + std::to_string(shape.out_stride) +
                   "; this op takes 0 or out, " + std::to_string(shape.out));
}

}  // namespace

std::int64_t linear_workspace_bytes(const LinearShape& shape, const Target& target) {
  std::int64_t bytes = column_sum_workspace_bytes(shape.rows, shape.out, target);
  for (const bool bias : {false, true})
    bytes = std::max(bytes, product_bytes(shape, forward_shape(shape, bias), kWeight, target));
  for (const float beta : {0.0f, 1.0f}) {
    bytes = std::max(bytes, product_bytes(shape, input_gradient_shape(shape, beta), kWeight, target));
    bytes = std::max(bytes, product_bytes(shape, weight_gradient_shape(shape, beta), kActivation, target));
  }
  return bytes;
}

void linear_forward(const ComputeContext& context, const LinearShape& shape, const void* input,
                    const void* weight, const void* bias, void* output) {
  multiply(context, shape, forward_shape(shape, bias != nullptr), kWeight, input, weight, bias, output);
}

void linear_gelu_forward(const ComputeContext& context, const LinearShape& shape, const void* input,
                         const void* weight, const void* bias, void* preactivation, void* output) {
  check_dense(shape, "linear_gelu_forward");
  linear_forward(context, shape, input, weight, bias, preactivation);
  gelu_forward(context, shape.type, shape.rows * shape.out, preactivation, output);
}

void linear_backward_input(const ComputeContext& context, const LinearShape& shape,
                           const void* output_gradient, const void* weight, float beta,
                           void* input_gradient) {
  check_beta(beta, "linear_backward_input");
  multiply(context, shape, input_gradient_shape(shape, beta), kWeight, output_gradient, weight, nullptr,
           input_gradient);
}

void linear_backward_weight(const ComputeContext& context, const LinearShape& shape,
                            const void* output_gradient, const void* input, float beta,
                            void* weight_gradient) {
  check_beta(beta, "linear_backward_weight");
  multiply(context, shape, weight_gradient_shape(shape, beta), kActivation, output_gradient, input, nullptr,
           weight_gradient);
}

void linear_backward_bias(const ComputeContext& context, const LinearShape& shape,
                          const void* output_gradient, float beta, void* bias_gradient) {
  check_compute_type(shape.type, "linear_backward_bias");
  check_dense(shape, "linear_backward_bias");
  check_beta(beta, "linear_backward_bias");
  column_sum(context, shape.rows, shape.out, shape.type, output_gradient, beta, bias_gradient);
}

std::int64_t linear_partial_workspace_bytes(const LinearShape& shape, const Target& target) {
  std::int64_t bytes =
      std::max(product_bytes(shape, in_fp32(forward_shape(shape, false)), kWeight, target),
               product_bytes(shape, in_fp32(input_gradient_shape(shape, 0.0f)), kWeight, target));
  for (const float beta : {0.0f, 1.0f})
    bytes = std::max(bytes,
                     product_bytes(shape, in_fp32(weight_gradient_shape(shape, beta)), kActivation, target));
  return bytes;
}

void linear_forward_partial(const ComputeContext& context, const LinearShape& shape, const void* input,
                            const void* weight, float* output) {
  multiply(context, shape, in_fp32(forward_shape(shape, false)), kWeight, input, weight, nullptr, output);
}

void linear_backward_input_partial(const ComputeContext& context, const LinearShape& shape,
                                   const void* output_gradient, const void* weight, float* input_gradient) {
  multiply(context, shape, in_fp32(input_gradient_shape(shape, 0.0f)), kWeight, output_gradient, weight,
           nullptr, input_gradient);
}

void linear_backward_weight_partial(const ComputeContext& context, const LinearShape& shape,
                                    const void* output_gradient, const void* input, float beta,
                                    float* weight_gradient) {
  check_beta(beta, "linear_backward_weight_partial");
  multiply(context, shape, in_fp32(weight_gradient_shape(shape, beta)), kActivation, output_gradient, input,
           nullptr, weight_gradient);
}

void finish_sum(const ComputeContext& context, const SumShape& shape, const float* sum, const void* bias,
                void* output) {
  check_compute_type(shape.type, "finish_sum");
  if (bias == nullptr)
    return cast(context, shape.rows * shape.channels, DType::fp32, sum, shape.type, output);
  round_sum(context, {.rows = shape.rows, .channels = shape.channels, .type = shape.type}, sum, bias, output);
}

void add_sum(const ComputeContext& context, const SumShape& shape, const float* sum, float beta,
             void* output) {
  check_beta(beta, "add_sum");
  if (beta == 0.0f) return finish_sum(context, shape, sum, nullptr, output);
  check_compute_type(shape.type, "add_sum");
  round_sum(context,
            {.rows = shape.rows, .channels = shape.channels, .type = shape.type, .table_rows = shape.rows},
            sum, output, output);
}

}  // namespace tessera::kernels
