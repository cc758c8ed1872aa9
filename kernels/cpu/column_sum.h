// Column sums of a matrix, and the addition of row groups (row_groups.h) that ends every sum over rows.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// sums [columns] = column sums of input [rows, columns] + beta * sums.
void column_sum(const ComputeContext& context, std::int64_t rows, std::int64_t columns, DType type,
                const void* input, float beta, void* sums);
std::int64_t column_sum_workspace_bytes(std::int64_t rows, std::int64_t columns);

// sums [columns] = the `groups` rows of partial, `stride` floats apart, added in order, + beta * sums;
// rounded once.
void add_row_groups(const ComputeContext& context, std::int64_t groups, std::int64_t columns,
                    std::int64_t stride, const float* partial, float beta, DType type, void* sums);

}  // namespace tessera::kernels
