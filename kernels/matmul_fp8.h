// Products of matrices in fp8 (quantize.h).
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "kernels/matmul.h"
#include "kernels/quantize.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// C[m,n] = A[m,k] B[n,k]^T + beta * C (+ bias[n]), row-major. An element of C is the sum over k of products
// of a value of A, a value of B and their tiles' scales, in fp32, and is rounded once. m, n and k are
// multiples of 16, and so is ldc.
struct MatmulFp8Shape {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  Fp8Tiles b_tiles = Fp8Tiles::blocks;  // of B; those of A are vectors
  std::int64_t ldc = 0;                 // elements from one row of C to the next; 0: dense
  DType output_type = DType::bf16;      // of C: bf16 or fp32
  bool bias = false;                    // a bias[n] in bf16 is added; C is then bf16
  float beta = 0.0f;                    // any value; 0 never reads C
};

struct Fp8Matrix {
  const void* values = nullptr;
  const float* scales = nullptr;
};

// Bytes of workspace, as matmul_workspace_bytes(). On CUDA they are the same for every GPU.
std::int64_t matmul_fp8_workspace_bytes(const MatmulFp8Shape& shape, const Target& target);

// `bias` is null if and only if shape.bias is false. The CPU multiplies values times scales, which are exact
// in bf16, by matmul(). CUDA multiplies by cuBLASLt: with scales in fp32 on GPUs of compute capability 9, and
// from 10 on with the same scales as bytes of exponents, for each 32 elements. Throws UsageError for a shape
// that is not allowed, and UnsupportedError for an older GPU.
void matmul_fp8(const ComputeContext& context, const MatmulFp8Shape& shape, const Fp8Matrix& a,
                const Fp8Matrix& b, const void* bias, void* c);

// matmul() with both operands quantized anew, those of B in such tiles: neither keeps nor needs any state
// between calls. Inputs are bf16, and alpha is 1.
std::int64_t quantized_matmul_workspace_bytes(const MatmulShape& shape, Fp8Tiles b_tiles,
                                              const Target& target);
void quantized_matmul(const ComputeContext& context, const MatmulShape& shape, Fp8Tiles b_tiles,
                      const void* a, const void* b, const void* bias, void* c);

}  // namespace tessera::kernels
