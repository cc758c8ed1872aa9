// The end of every sum over rows: groups of rows were summed apart (launch.h), here the groups are.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels::cuda {

// sums [columns] = the `groups` rows of partial, `stride` floats apart, added in a fixed order, + beta *
// sums; rounded once.
void add_row_groups(const ComputeContext& context, std::int64_t groups, std::int64_t columns,
                    std::int64_t stride, const float* partial, float beta, DType type, void* sums);

}  // namespace tessera::kernels::cuda
