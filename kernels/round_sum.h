// The end of a sum over ranks: fp32 sums are rounded to a tensor's type, with rows of a table added. linear.h
// and embedding.h have the functions for callers.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

// sum, output [rows, channels], table [table_rows, channels]. Output and table have the type.
struct RoundSumShape {
  std::int64_t rows = 0;
  std::int64_t channels = 0;
  DType type = DType::fp32;
  std::int64_t table_rows = 1;
  std::int64_t first_row = 0;  // number of the first row
};

// output[r] = sum[r] + table[(first_row + r) mod table_rows], rounded once. In fp32 output may be sum.
// Output may be table where each row has its own. The same bits for any thread count and instruction set.
void round_sum(const ComputeContext& context, const RoundSumShape& shape, const float* sum, const void* table,
               void* output);

}  // namespace tessera::kernels
