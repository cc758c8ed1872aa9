// Matrix products. linear.h makes linear layers of them.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// C[m,n] = alpha * op(A)[m,k] op(B)[k,n] + beta * C (+ bias[n]), row-major, accumulated in fp32.
struct MatmulShape {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool transpose_a = false;  // A is stored [k,m] instead of [m,k]
  bool transpose_b = false;  // B is stored [n,k] instead of [k,n]
  std::int64_t lda = 0;      // elements from one stored row to the next; 0: dense
  std::int64_t ldb = 0;
  std::int64_t ldc = 0;
  DType input_type = DType::fp32;   // of A and B: fp32 or bf16
  DType output_type = DType::fp32;  // of C: fp32, or bf16 if the inputs are bf16
  bool bias = false;                // a bias[n] of output_type is added
  float alpha = 1.0f;
  float beta = 0.0f;  // any value; 0 never reads C
};

// Bytes of workspace for this shape, a multiple of 64. Also prepares the op for this shape and keeps it on
// this thread. On the CPU the bytes depend on the machine's instruction set and the thread count. On CUDA
// they are 32 MiB for every shape and GPU; an algorithm uses as much as it needs.
std::int64_t matmul_workspace_bytes(const MatmulShape& shape, const Target& target);

// `bias` is null if and only if shape.bias is false. Throws UsageError for a type or leading dim that is not
// allowed.
void matmul(const ComputeContext& context, const MatmulShape& shape, const void* a, const void* b,
            const void* bias, void* c);

}  // namespace tessera::kernels
