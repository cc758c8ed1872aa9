#include "kernels/column_sum.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/row_groups.h"
#include "kernels/cuda/sweep.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/ops.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int kRowLanes = 8;  // threads that share a column of a group, in a block of so many warps

// partial [groups, columns]: a block sums a group's rows of kWarp * kWidth columns.
template <class T, int kWidth>
__global__ void __launch_bounds__(kWarp* kRowLanes)
    column_groups_kernel(std::int64_t rows, std::int64_t columns, const T* input, float* partial) {
  __shared__ float shared[kRowLanes][kWarp * kWidth];
  const std::int64_t vector = blockIdx.x * std::int64_t{kWarp} + threadIdx.x;
  const std::int64_t column = vector * kWidth;
  const std::int64_t begin = group_begin(rows, gridDim.y, blockIdx.y);
  const std::int64_t end = group_begin(rows, gridDim.y, blockIdx.y + 1);
  float sum[kWidth] = {};
  if (column < columns)
#pragma unroll 4
    for (std::int64_t row = begin + threadIdx.y; row < end; row += kRowLanes) {
      float x[kWidth];
      load(input + row * columns + column, x);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum[j] += x[j];
    }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) shared[threadIdx.y][j * kWarp + threadIdx.x] = sum[j];
  __syncthreads();
  if (threadIdx.y > 0 || column >= columns) return;
#pragma unroll
  for (int j = 0; j < kWidth; ++j)
    for (int lane = 1; lane < kRowLanes; ++lane) sum[j] += shared[lane][j * kWarp + threadIdx.x];
  // Columns are whole vectors; where nvcc does not see that of the offset it stores element by element.
  store(sum, partial + (blockIdx.y * (columns / kWidth) + vector) * kWidth);
}

template <class T>
struct Sums {
  T* of[kMostSums];
};

// A block has kWarp columns of one of the sums; in each column thread y adds the groups y, y + kWarp, ...,
// then thread 0 the threads.
template <class T>
__global__ void __launch_bounds__(kWarp* kWarp)
    add_groups_kernel(std::int64_t groups, std::int64_t columns, const float* partial, float beta,
                      Sums<T> sums) {
  __shared__ float shared[kWarp][kWarp + 1];
  const std::int64_t column = blockIdx.x * std::int64_t{kWarp} + threadIdx.x;
  const std::int64_t stride = gridDim.y * columns;
  const float* const own = partial + blockIdx.y * columns + column;
  float sum = 0.0f;
  if (column < columns)
#pragma unroll 8
    for (std::int64_t group = threadIdx.y; group < groups; group += kWarp) sum += own[group * stride];
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= columns) return;
  for (int y = 1; y < kWarp; ++y) sum += shared[y][threadIdx.x];
  T* const to = sums.of[blockIdx.y] + column;
  if (beta != 0.0f) sum = to_float(*to) + sum;
  *to = from_float<T>(sum);
}

template <class T, int kWidth>
void sum_groups(const ComputeContext& context, std::int64_t rows, std::int64_t columns, const void* input,
                float* partial) {
  const dim3 grid(static_cast<unsigned>(ceil_div(columns, kWarp * kWidth)),
                  static_cast<unsigned>(column_groups_of(rows)));
  start(context, "column_sum", {grid, dim3(kWarp, kRowLanes)}, column_groups_kernel<T, kWidth>, rows, columns,
        static_cast<const T*>(input), partial);
}

}  // namespace

void add_row_groups(const ComputeContext& context, std::int64_t groups, std::int64_t columns,
                    const float* partial, float beta, DType type, std::initializer_list<void*> sums) {
  if (columns < 1) return;
  const dim3 grid(static_cast<unsigned>(ceil_div(columns, kWarp)), static_cast<unsigned>(sums.size()));
  with_compute_type(type, [&](auto t) {
    using T = decltype(t);
    Sums<T> to = {};
    std::transform(sums.begin(), sums.end(), to.of, [](void* sum) { return static_cast<T*>(sum); });
    start(context, "add_row_groups", {grid, dim3(kWarp, kWarp)}, add_groups_kernel<T>, groups, columns,
          partial, beta, to);
  });
}

std::int64_t column_sum_workspace_bytes(std::int64_t rows, std::int64_t columns, const Target& /*target*/) {
  return workspace_part_bytes(column_groups_of(rows) * columns * 4);
}

void column_sum(const ComputeContext& context, std::int64_t rows, std::int64_t columns, DType type,
                const void* input, float beta, void* sums) {
  check_workspace(context, cuda::column_sum_workspace_bytes(rows, columns, context.target()), "column_sum");
  if (columns < 1) return;
  auto* partial = static_cast<float*>(context.workspace.data);
  with_compute_type(type, [&](auto t) {
    using T = decltype(t);
    constexpr int kWidth = width_of(sizeof(T));
    if (columns % kWidth == 0 && is_aligned(kWidth, {{input, sizeof(T)}, {partial}}))
      sum_groups<T, kWidth>(context, rows, columns, input, partial);
    else
      sum_groups<T, 1>(context, rows, columns, input, partial);
  });
  add_row_groups(context, column_groups_of(rows), columns, partial, beta, type, {sums});
}

}  // namespace tessera::kernels::cuda
