// Sums over the rows of a matrix, by columns, whether the matrix lies in memory or is only just made.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/cuda/row_groups.h"
#include "kernels/cuda/sweep.cuh"
#include "kernels/cuda/vector.cuh"

namespace tessera::kernels::cuda {

constexpr int kRowLanes = 8;  // threads that share a column of a group, in a block of so many warps

// partial [groups, columns]: a block sums a group's rows of kWarp * kWidth columns. source.take(i, x) makes x
// of the kWidth elements from `i` on, once for each; kRowsAtOnce of them together.
template <int kWidth, class Source>
__global__ void __launch_bounds__(kWarp* kRowLanes)
    column_groups_kernel(std::int64_t rows, std::int64_t columns, Source source, float* partial) {
  __shared__ float shared[kRowLanes][kWarp * kWidth];
  // Columns are whole vectors; where nvcc does not see that of an offset it stores element by element.
  const std::int64_t vectors = columns / kWidth;
  const std::int64_t vector = blockIdx.x * std::int64_t{kWarp} + threadIdx.x;
  const std::int64_t begin = group_begin(rows, gridDim.y, blockIdx.y);
  const std::int64_t end = group_begin(rows, gridDim.y, blockIdx.y + 1);
  float sum[kWidth] = {};
  if (vector < vectors)
#pragma unroll Source::kRowsAtOnce
    for (std::int64_t row = begin + threadIdx.y; row < end; row += kRowLanes) {
      float x[kWidth];
      source.take((row * vectors + vector) * kWidth, x);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum[j] += x[j];
    }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) shared[threadIdx.y][j * kWarp + threadIdx.x] = sum[j];
  __syncthreads();
  if (threadIdx.y > 0 || vector >= vectors) return;
#pragma unroll
  for (int j = 0; j < kWidth; ++j)
    for (int lane = 1; lane < kRowLanes; ++lane) sum[j] += shared[lane][j * kWarp + threadIdx.x];
  store(sum, partial + (blockIdx.y * vectors + vector) * kWidth);
}

// sums [columns] of type T = column sums of the source's [rows, columns] + beta * sums, rounded once. Takes
// column_sum_workspace_bytes(rows, columns). `operands`: the tensors that the source accesses.
template <class T, class Source>
void sum_columns(const ComputeContext& context, const char* op, std::int64_t rows, std::int64_t columns,
                 const Source& source, std::initializer_list<Operand> operands, DType type, float beta,
                 void* sums) {
  if (columns < 1) return;
  auto* const partial = static_cast<float*>(context.workspace.data);
  const std::int64_t groups = column_groups_of(rows);
  const auto run = [&]<int kWidth>() {
    const dim3 grid(static_cast<unsigned>(ceil_div(columns, kWarp * kWidth)), static_cast<unsigned>(groups));
    start(context, op, {grid, dim3(kWarp, kRowLanes)}, column_groups_kernel<kWidth, Source>, rows, columns,
          source, partial);
  };
  constexpr int kVector = width_of(sizeof(T));
  if (columns % kVector == 0 && is_aligned(kVector, operands) && is_aligned(kVector, {{partial}}))
    run.template operator()<kVector>();
  else
    run.template operator()<1>();
  add_row_groups(context, groups, columns, partial, beta, type, {sums});
}

}  // namespace tessera::kernels::cuda
