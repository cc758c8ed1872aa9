#include "kernels/column_sum.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/column_groups.cuh"
#include "kernels/ops.h"

namespace tessera::kernels::cuda {
namespace {

template <class T>
struct Matrix {
  static constexpr int kRowsAtOnce = 4;
  const T* data;

  template <int kCount>
  __device__ void take(std::int64_t i, float (&x)[kCount]) const {
    load(data + i, x);
  }
};

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
  with_compute_type(type, [&](auto t) {
    using T = decltype(t);
    sum_columns<T>(context, "column_sum", rows, columns, Matrix<T>{static_cast<const T*>(input)},
                   {{input, sizeof(T)}}, type, beta, sums);
  });
}

}  // namespace tessera::kernels::cuda
