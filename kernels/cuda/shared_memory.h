// For kernels that need much shared memory: asks the GPU for more dynamic shared memory than a launch gets by
// default, and for its number of multiprocessors.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "kernels/cuda/kept.h"
#include "src/device/cuda_check.h"

namespace tessera::kernels::cuda {

// Asks for the most dynamic shared memory that a block of the kernel can have on the GPU. Returns its bytes,
// 0 if refused. It never asks for less: that would reduce the limit of another thread's launch.
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

// Bytes by kernel and GPU.
using MostShared = std::map<std::pair<const void*, int>, std::int64_t>;

// The dynamic shared memory, in bytes, with which a block of the kernel can be launched on the calling
// thread's GPU; 0 if unknown. Each thread asks once.
inline std::int64_t most_shared(const void* kernel) {
  int ordinal = 0;
  const cudaError_t found = cudaGetDevice(&ordinal);
  device::ignore_cuda(found);
  if (found != cudaSuccess) return 0;
  const auto [place, is_new] = kept<MostShared>().try_emplace({kernel, ordinal});
  if (is_new) place->second = ask_for_shared(kernel, ordinal);
  return place->second;
}

// The number of multiprocessors of the calling thread's GPU; 1 if unknown.
inline unsigned multiprocessors() {
  int ordinal = 0, count = 0;
  cudaError_t asked = cudaGetDevice(&ordinal);
  if (asked == cudaSuccess) asked = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ordinal);
  device::ignore_cuda(asked);
  return static_cast<unsigned>(std::max(count, 1));
}

}  // namespace tessera::kernels::cuda
