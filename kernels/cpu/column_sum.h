// The addition of row groups (row_groups.h) that ends every sum over rows.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels::cpu {

// sums [columns] = the `groups` rows of partial, `stride` floats apart, added in order, + beta * sums;
// rounded once.
void add_row_groups(const ComputeContext& context, std::int64_t groups, std::int64_t columns,
                    std::int64_t stride, const float* partial, float beta, DType type, void* sums);

}  // namespace tessera::kernels::cpu
