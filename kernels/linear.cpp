#include "kernels/linear.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/column_sum.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"

namespace tessera::kernels {
namespace {

MatmulShape forward_shape(const LinearShape& s, bool bias) {
  return {.m = s.rows,
          .n = s.out,
          .k = s.in,
          .transpose_b = true,
          .input_type = s.type,
          .output_type = s.type,
          .bias = bias};
}

MatmulShape input_gradient_shape(const LinearShape& s, float beta) {
  return {.m = s.rows, .n = s.in, .k = s.out, .input_type = s.type, .output_type = s.type, .beta = beta};
}

MatmulShape weight_gradient_shape(const LinearShape& s, float beta) {
  return {.m = s.out,
          .n = s.in,
          .k = s.rows,
          .transpose_a = true,
          .input_type = s.type,
          .output_type = s.type,
          .beta = beta};
}

}  // namespace

std::int64_t linear_workspace_bytes(const LinearShape& shape, const Target& target) {
  std::int64_t bytes = column_sum_workspace_bytes(shape.rows, shape.out, target);
  for (const bool bias : {false, true})
    bytes = std::max(bytes, matmul_workspace_bytes(forward_shape(shape, bias), target));
  for (const float beta : {0.0f, 1.0f}) {
    bytes = std::max(bytes, matmul_workspace_bytes(input_gradient_shape(shape, beta), target));
    bytes = std::max(bytes, matmul_workspace_bytes(weight_gradient_shape(shape, beta), target));
  }
  return bytes;
}

void linear_forward(const ComputeContext& context, const LinearShape& shape, const void* input,
                    const void* weight, const void* bias, void* output) {
  matmul(context, forward_shape(shape, bias != nullptr), input, weight, bias, output);
}

void linear_gelu_forward(const ComputeContext& context, const LinearShape& shape, const void* input,
                         const void* weight, const void* bias, void* preactivation, void* output) {
  linear_forward(context, shape, input, weight, bias, preactivation);
  gelu_forward(context, shape.type, shape.rows * shape.out, preactivation, output);
}

void linear_backward_input(const ComputeContext& context, const LinearShape& shape,
                           const void* output_gradient, const void* weight, float beta,
                           void* input_gradient) {
  check_beta(beta, "linear_backward_input");
  matmul(context, input_gradient_shape(shape, beta), output_gradient, weight, nullptr, input_gradient);
}

void linear_backward_weight(const ComputeContext& context, const LinearShape& shape,
                            const void* output_gradient, const void* input, float beta,
                            void* weight_gradient) {
  check_beta(beta, "linear_backward_weight");
  matmul(context, weight_gradient_shape(shape, beta), output_gradient, input, nullptr, weight_gradient);
}

void linear_backward_bias(const ComputeContext& context, const LinearShape& shape,
                          const void* output_gradient, float beta, void* bias_gradient) {
  check_compute_type(shape.type, "linear_backward_bias");
  check_beta(beta, "linear_backward_bias");
  column_sum(context, shape.rows, shape.out, shape.type, output_gradient, beta, bias_gradient);
}

}  // namespace tessera::kernels
