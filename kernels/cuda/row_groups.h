// The end of every sum over rows: groups of rows were summed apart (launch.h), here the groups are.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels::cuda {

// Each of `sums` [columns] = its columns of partial [groups, sums.size() * columns], those of the first ahead
// of those of the next, added over the groups in a fixed order, + beta * itself; rounded once. At most
// kMostSums.
inline constexpr int kMostSums = 2;
void add_row_groups(const ComputeContext& context, std::int64_t groups, std::int64_t columns,
                    const float* partial, float beta, DType type, std::initializer_list<void*> sums);

}  // namespace tessera::kernels::cuda
