// Adds the row groups (row_groups.h), as the last part of every sum over rows.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels::cpu {

// sums [columns] = beta * sums + the `groups` rows of `partial`, which are `stride` floats apart, added in
// order; rounded once.
void add_row_groups(const ComputeContext& context, std::int64_t groups, std::int64_t columns,
                    std::int64_t stride, const float* partial, float beta, DType type, void* sums);

}  // namespace tessera::kernels::cpu
