// Column sums of a matrix: the gradient of a bias.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

std::int64_t column_sum_workspace_bytes(std::int64_t rows, std::int64_t columns, const Target& target);

// sums [columns] = column sums of input [rows, columns] + beta * sums, rounded once. The same bits for any
// thread count and instruction set.
void column_sum(const ComputeContext& context, std::int64_t rows, std::int64_t columns, DType type,
                const void* input, float beta, void* sums);

}  // namespace tessera::kernels
