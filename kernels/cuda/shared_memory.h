// The dynamic shared memory that a kernel has to ask for before a launch takes it.
#pragma once

#include <cuda_runtime.h>

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

// Whether the kernel can be launched with so many bytes on the calling thread's GPU. Each thread asks once.
inline bool can_share(const void* kernel, std::int64_t bytes) {
  int ordinal = 0;
  const cudaError_t found = cudaGetDevice(&ordinal);
  device::ignore_cuda(found);
  if (found != cudaSuccess) return false;
  const auto [place, is_new] = kept<MostShared>().try_emplace({kernel, ordinal});
  if (is_new) place->second = ask_for_shared(kernel, ordinal);
  return bytes <= place->second;
}

}  // namespace tessera::kernels::cuda
