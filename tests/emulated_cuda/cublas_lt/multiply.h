// The arithmetic of a product, in float64.
#pragma once

#include "tests/emulated_cuda/cublas_lt/problem.h"
#include "tests/emulated_cuda/cublas_lt/scales.h"

namespace tessera::emulated_cuda::cublas_lt {

struct Product {
  Problem problem;
  float alpha = 1, beta = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;
  Scales a_scales, b_scales;
  const void* c = nullptr;  // not read if beta is 0
  void* d = nullptr;
  Split split;
};

// Sums in float64, each rounded once to fp32 and the result from there to the type of D. Products of fp32,
// bf16 or fp8, with scales that are powers of two, are exact in float64, so bits depend on the order of the
// sum and on how it is split.
void multiply(const Product& product);

}  // namespace tessera::emulated_cuda::cublas_lt
