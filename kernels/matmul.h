// Matrix product. Linear layers are in linear.h; nothing here knows of them.
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
  std::int64_t lda = 0;      // elements between stored rows; 0: dense
  std::int64_t ldb = 0;
  std::int64_t ldc = 0;
  DType input_type = DType::fp32;   // of A and B: fp32 or bf16
  DType output_type = DType::fp32;  // of C: fp32, or bf16 where the inputs are
  bool bias = false;                // a bias[n] of output_type is added
  float alpha = 1.0f;
  float beta = 0.0f;  // any value; 0 never reads C
};

// Bytes of workspace for this shape, a whole number of 64; makes and keeps what the op needs on this thread.
// On the CPU it depends on the machine's instruction set and the thread count; on CUDA it is 32 MiB, whatever
// the shape and the GPU, of which an algorithm takes what it needs.
std::int64_t matmul_workspace_bytes(const MatmulShape& shape, const Target& target);

// `bias` is null if and only if shape.bias is false. Throws UsageError for a type or leading dim that is not
// allowed.
void matmul(const ComputeContext& context, const MatmulShape& shape, const void* a, const void* b,
            const void* bias, void* c);

}  // namespace tessera::kernels
