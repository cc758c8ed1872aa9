// What a product is apart from where its matrices lie: all that the choice of an algorithm depends on.
#pragma once

#include <cstdint>
#include <string>

#include "tests/emulated_cuda/cublas_lt/objects.h"

namespace tessera::emulated_cuda::cublas_lt {

// D[m, n] = alpha op(A)[m, k] op(B)[k, n] + beta C (+ bias[m]), columns first.
struct Problem {
  std::int64_t m = 0, n = 0, k = 0;
  Layout a, b, c, d;
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  cudaDataType_t bias_type = CUDA_R_32F;
  cublasLtMatmulMatrixScale_t a_scale_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  cublasLtMatmulMatrixScale_t b_scale_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;

  bool is_fp8() const { return a.type == CUDA_R_8F_E4M3; }
  bool has_bias() const { return epilogue == CUBLASLT_EPILOGUE_BIAS; }
  bool operator==(const Problem&) const = default;
};

// Refuses shapes that do not go together, leading dims that are shorter than a column, and types that
// cuBLASLt does not combine. In fp8 also dims and places that are no multiples of 16, operands without the
// dim that is summed over first, and scales that do not go together or that a GPU of that compute capability
// does not take.
Problem problem_of(const Description& description, const Layout& a, const Layout& b, const Layout& c,
                   const Layout& d, int compute_capability);

// "D[16, 509] of type 0 = ...", for messages.
std::string words_of(const Problem& problem);

// In bytes: powers of two.
struct Alignments {
  std::uint32_t a = 256, b = 256, c = 256, d = 256, bias = 256;
};

// The largest power of two, up to 256, that divides the number.
inline std::uint32_t alignment_of(std::uintptr_t number) {
  const std::uintptr_t bits = number | 256;
  return static_cast<std::uint32_t>(bits & -bits);
}
inline std::uint32_t alignment_of(const void* pointer) {
  return alignment_of(reinterpret_cast<std::uintptr_t>(pointer));
}

// How a sum over k is split: each part is rounded to fp32, and the parts are added in fp32.
struct Split {
  int parts = 1;           // 1: the sum is rounded once
  bool by_chance = false;  // with atomics on D: which part comes first changes from product to product
};

struct Algorithm {
  Problem problem;
  int gpu = 0;
  Alignments promised;
  std::size_t workspace_bytes = 0;
  Split split;
};

// The algorithm behind what a caller has kept of it. Refuses what the heuristic did not give out.
const Algorithm& algorithm_of(const cublasLtMatmulAlgo_t& kept);

}  // namespace tessera::emulated_cuda::cublas_lt
