// What the threads of a block do together, in a fixed order.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

template <class Combine>
__device__ inline float warp_combine(float x, Combine combine) {
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) x = combine(x, __shfl_xor_sync(0xffffffffu, x, apart));
  return x;
}

// Each x over the block's threads, by a combination that commutes; every thread gets the same bits. The block
// has whole warps; `shared` has kCount * kWarp floats, which may be used again at once.
template <int kCount, class Combine>
__device__ inline void block_combine(float (&x)[kCount], float identity, Combine combine, float* shared) {
  const int lane = threadIdx.x % kWarp;
  const int warps = blockDim.x / kWarp;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    x[i] = warp_combine(x[i], combine);
    if (lane == 0) shared[i * kWarp + threadIdx.x / kWarp] = x[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    x[i] = warp_combine(lane < warps ? shared[i * kWarp + lane] : identity, combine);
  __syncthreads();
}

template <int kCount>
__device__ inline void block_sum(float (&x)[kCount], float* shared) {
  block_combine(
      x, 0.0f, [](float a, float b) { return a + b; }, shared);
}

// Calls function.template operator()<kCount>(i) for the elements [i, i + kCount) of a row that belong to this
// thread, always the same ones; 64 bits as in row_sweep_kernel. kOnce: of a row that one_vector_each() holds
// for.
template <int kWidth, bool kOnce = false, class Function>
__device__ inline void for_columns(const RowSweep& sweep, Function&& function) {
  if constexpr (kOnce) {
    const int i = static_cast<int>(threadIdx.x) * kWidth;
    if (i < sweep.columns) function.template operator()<kWidth>(i);
  } else if (sweep.vectorized) {
    for (int v = threadIdx.x; v < sweep.columns / kWidth; v += blockDim.x)
      function.template operator()<kWidth>(std::int64_t{v} * kWidth);
  } else {
    for (int i = threadIdx.x; i < sweep.columns; i += blockDim.x) function.template operator()<1>(i);
  }
}

}  // namespace tessera::kernels::cuda
