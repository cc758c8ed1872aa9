// quantized_matmul() of matmul_fp8.h, made of the ops of both headers.
#include "kernels/check.h"
#include "kernels/check_fp8.h"
#include "kernels/matmul_fp8.h"
#include "tessera/error.h"
#include "tessera/shape.h"

namespace tessera::kernels {
namespace {

// Both operands with the dim that is summed over as that of their rows.
struct Operands {
  QuantizeShape a, b;
};

Operands operands_of(const MatmulShape& s, Fp8Tiles b_tiles) {
  if (s.input_type != DType::bf16 || s.alpha != 1.0f)
    throw UsageError(describe(s) + ": operands that are quantized are bf16, and alpha is 1");
  return {
      .a = {.rows = s.m, .columns = s.k, .transposed = s.transpose_a, .stride = s.lda},
      .b = {.rows = s.n, .columns = s.k, .transposed = !s.transpose_b, .stride = s.ldb, .tiles = b_tiles}};
}

MatmulFp8Shape product_of(const MatmulShape& s, Fp8Tiles b_tiles) {
  return {.m = s.m,
          .n = s.n,
          .k = s.k,
          .b_tiles = b_tiles,
          .ldc = s.ldc,
          .output_type = s.output_type,
          .bias = s.bias,
          .beta = s.beta};
}

// Parts of a workspace on a device begin at multiples of this.
constexpr std::int64_t kPartAlignment = 256;

std::int64_t values_bytes(const QuantizeShape& s) { return round_up(s.rows * s.columns, kPartAlignment); }
std::int64_t matrix_bytes(const QuantizeShape& s) {
  return values_bytes(s) +
         round_up(s.scale_numel() * static_cast<std::int64_t>(sizeof(float)), kPartAlignment);
}

Fp8Matrix quantized(const ComputeContext& context, const QuantizeShape& shape, const void* input,
                    void* memory) {
  auto* const scales = offset_bytes<float>(memory, values_bytes(shape));
  quantize(context, shape, input, memory, scales);
  return {.values = memory, .scales = scales};
}

}  // namespace

std::int64_t quantized_matmul_workspace_bytes(const MatmulShape& shape, Fp8Tiles b_tiles,
                                              const Target& target) {
  const Operands operands = operands_of(shape, b_tiles);
  check_quantize(operands.a);
  check_quantize(operands.b);
  return matrix_bytes(operands.a) + matrix_bytes(operands.b) +
         matmul_fp8_workspace_bytes(product_of(shape, b_tiles), target);
}

void quantized_matmul(const ComputeContext& context, const MatmulShape& shape, Fp8Tiles b_tiles,
                      const void* a, const void* b, const void* bias, void* c) {
  const auto [left, right] = operands_of(shape, b_tiles);
  const std::int64_t taken = matrix_bytes(left) + matrix_bytes(right);
  check_workspace(context, taken, "quantized_matmul");
  void* const memory = context.workspace.data;
  const Fp8Matrix first = quantized(context, left, a, memory);
  const Fp8Matrix second = quantized(context, right, b, offset_bytes<void>(memory, matrix_bytes(left)));
  ComputeContext rest = context;
  rest.workspace = {.data = offset_bytes<void>(memory, taken), .bytes = context.workspace.bytes - taken};
  matmul_fp8(rest, product_of(shape, b_tiles), first, second, bias, c);
}

}  // namespace tessera::kernels
