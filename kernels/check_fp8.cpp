#include "kernels/check_fp8.h"

#include "tessera/error.h"

namespace tessera::kernels {

void check_fp8_extent(const std::string& op, const char* what, std::int64_t value) {
  if (value >= 1 && value % kFp8Multiple == 0) return;
  throw UsageError(op + ": " + what + " is " + std::to_string(value) + "; fp8 needs a multiple of " +
                   std::to_string(kFp8Multiple));
}

void check_quantize(const QuantizeShape& s) {
  check_fp8_extent("quantize", "rows", s.rows);
  check_fp8_extent("quantize", "columns", s.columns);
  if (s.stride != 0) check_fp8_extent("quantize", "stride", s.stride);
  const std::int64_t least = s.transposed ? s.rows : s.columns;
  if (s.stride != 0 && s.stride < least)
    throw UsageError("quantize: stride is " + std::to_string(s.stride) + ", at least " +
                     std::to_string(least) + " is needed");
}

std::string describe(const MatmulFp8Shape& shape) {
  return "matmul " + std::to_string(shape.m) + " x " + std::to_string(shape.n) + " x " +
         std::to_string(shape.k) + " fp8 to " + std::string(name_of(shape.output_type));
}

void check_matmul_fp8(const MatmulFp8Shape& s) {
  const std::string op = describe(s);
  check_fp8_extent(op, "m", s.m);
  check_fp8_extent(op, "n", s.n);
  check_fp8_extent(op, "k", s.k);
  if (s.ldc != 0) check_fp8_extent(op, "ldc", s.ldc);
  if (s.ldc != 0 && s.ldc < s.n)
    throw UsageError(op + ": ldc is " + std::to_string(s.ldc) + ", at least " + std::to_string(s.n) +
                     " is needed");
  if (s.output_type == DType::fp16) throw UsageError(op + ": use bf16 or fp32");
  if (s.bias && s.output_type != DType::bf16) throw UsageError(op + ": a bias needs a bf16 output");
}

void check_fp8_bias(const MatmulFp8Shape& shape, const void* bias) {
  if (shape.bias == (bias != nullptr)) return;
  throw UsageError(describe(shape) + ": a bias is " + (bias ? "given, but shape.bias is false" : "missing"));
}

}  // namespace tessera::kernels
