// What kernels that keep much in shared memory ask of the GPU: dynamic shared memory that a launch would not
// get else, and how many multiprocessors there are to have some.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "kernels/cuda/kept.h"
#include "src/device/cuda_check.h"

namespace tessera::kernels::cuda {

// Asks for what a block of the kernel can have on a GPU at the most: its bytes, 0 where that is refused.
// Never for less, which would take it from a launch of another thread.
inline std::int64_t ask_for_shared(const void* kernel, int ordinal) {
  int bytes = 0;
  cudaFuncAttributes attributes{};
  cudaError_t asked = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
  if (asked == cudaSuccess) asked = cudaFuncGetAttributes(&attributes, kernel);
  bytes -= static_cast<int>(attributes.sharedSizeBytes);
  if (asked == cudaSuccess)
    asked = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  device::ignore_cuda(asked);
  return asked == cudaSuccess ? bytes : 0;
}

// By kernel and GPU.
using MostShared = std::map<std::pair<const void*, int>, std::int64_t>;

// The dynamic bytes that a block of the kernel can be launched with on the calling thread's GPU; 0 where that
// cannot be found out. Each thread asks once.
inline std::int64_t most_shared(const void* kernel) {
  int ordinal = 0;
  const cudaError_t found = cudaGetDevice(&ordinal);
  device::ignore_cuda(found);
  if (found != cudaSuccess) return 0;
  const auto [place, is_new] = kept<MostShared>().try_emplace({kernel, ordinal});
  if (is_new) place->second = ask_for_shared(kernel, ordinal);
  return place->second;
}

// Of the calling thread's GPU; 1 where that cannot be found out.
inline unsigned multiprocessors() {
  int ordinal = 0, count = 0;
  cudaError_t asked = cudaGetDevice(&ordinal);
  if (asked == cudaSuccess) asked = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ordinal);
  device::ignore_cuda(asked);
  return static_cast<unsigned>(std::max(count, 1));
}

}  // namespace tessera::kernels::cuda
