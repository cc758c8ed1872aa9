// How sums over rows are parallel and still the same for any number of threads. Rows are cut into fixed
// groups. Each group is summed in row order into its own fp32 part of the workspace, and the groups are added
// in order.
#pragma once

#include <cstdint>

namespace tessera::kernels {

constexpr std::int64_t kRowsPerGroup = 64;

constexpr std::int64_t row_groups(std::int64_t rows) { return (rows + kRowsPerGroup - 1) / kRowsPerGroup; }

}  // namespace tessera::kernels
