// The scales of an fp8 operand, as cuBLASLt lays them out (cuBLAS documentation, "Narrow Precision Data Types
// Usage").
#pragma once

#include <cublasLt.h>

#include <cstdint>

namespace tessera::emulated_cuda::cublas_lt {

// A line is a row of op(A) or a column of op(B): what the product sums over runs along it, `k` elements.
struct Scales {
  cublasLtMatmulMatrixScale_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  const void* data = nullptr;
  std::int64_t lines = 0, k = 0;

  // Bytes from `data` on that a product reads.
  std::int64_t bytes() const;
  // What the line's element is multiplied by.
  double at(std::int64_t line, std::int64_t element) const;
};

// Whether a product takes one operand with the first and the other with the second: both by the exponents of
// 32 elements, or both by 128 elements, of which one may be by squares.
bool go_together(cublasLtMatmulMatrixScale_t one, cublasLtMatmulMatrixScale_t other);

}  // namespace tessera::emulated_cuda::cublas_lt
