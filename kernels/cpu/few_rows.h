// Products of few rows with a matrix, as generation makes them: they read the matrix once, at the memory's
// speed. oneDNN reaches half of that on one thread, and on processors without AVX-512 would first make a copy
// in fp32 of a matrix in bf16.
#pragma once

#include "kernels/matmul.h"

namespace tessera::kernels::cpu {

// Whether few_rows() computes the product: at most four rows, B stored [n, k], nothing to add to but a bias.
bool takes_few_rows(const MatmulShape& shape);

// matmul(), without a workspace. Each element of C is one sum over k in an order of its own, whatever the
// thread count and the other rows.
void few_rows(const ComputeContext& context, const MatmulShape& shape, const void* a, const void* b,
              const void* bias, void* c);

}  // namespace tessera::kernels::cpu
