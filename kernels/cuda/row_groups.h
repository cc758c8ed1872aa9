// The last part of every sum over rows. Groups of rows were summed separately (launch.h); here the groups are
// added.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels::cuda {

// partial [groups, sums.size() * columns] holds the columns of the first sum, then those of the next. Each of
// `sums` [columns] becomes beta * itself + its columns of partial, added over the groups in a fixed order and
// rounded once. There are at most kMostSums sums.
inline constexpr int kMostSums = 2;
void add_row_groups(const ComputeContext& context, std::int64_t groups, std::int64_t columns,
                    const float* partial, float beta, DType type, std::initializer_list<void*> sums);

}  // namespace tessera::kernels::cuda
