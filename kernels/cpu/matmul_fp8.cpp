#include "kernels/matmul_fp8.h"

#include "kernels/check.h"
#include "kernels/cpu/dequantize.h"
#include "kernels/ops.h"

namespace tessera::kernels::cpu {
namespace {

MatmulShape in_bf16(const MatmulFp8Shape& s) {
  return {.m = s.m,
          .n = s.n,
          .k = s.k,
          .transpose_b = true,
          .ldc = s.ldc == s.n ? 0 : s.ldc,
          .input_type = DType::bf16,
          .output_type = s.output_type,
          .bias = s.bias,
          .beta = s.beta};
}

std::int64_t operand_bytes(std::int64_t rows, std::int64_t columns) {
  return workspace_part_bytes(rows * columns * bytes_of(DType::bf16));
}

}  // namespace

std::int64_t matmul_fp8_workspace_bytes(const MatmulFp8Shape& s, const Target& target) {
  return operand_bytes(s.m, s.k) + operand_bytes(s.n, s.k) + cpu::matmul_workspace_bytes(in_bf16(s), target);
}

// A value times its scale is a bf16 number, and a product of two of these is exact in fp32.
void matmul_fp8(const ComputeContext& context, const MatmulFp8Shape& s, const Fp8Matrix& a,
                const Fp8Matrix& b, const void* bias, void* c) {
  check_workspace(context, cpu::matmul_fp8_workspace_bytes(s, context.target()), "matmul_fp8");
  Bf16* const left = static_cast<Bf16*>(context.workspace.data);
  Bf16* const right = offset_bytes<Bf16>(left, operand_bytes(s.m, s.k));
  cpu::dequantize(context, {.rows = s.m, .columns = s.k}, a, left);
  cpu::dequantize(context, {.rows = s.n, .columns = s.k, .tiles = s.b_tiles}, b, right);
  const std::int64_t taken = operand_bytes(s.m, s.k) + operand_bytes(s.n, s.k);
  ComputeContext rest = context;
  rest.workspace = {.data = offset_bytes<void>(left, taken), .bytes = context.workspace.bytes - taken};
  cpu::matmul(rest, in_bf16(s), left, right, bias, c);
}

}  // namespace tessera::kernels::cpu
