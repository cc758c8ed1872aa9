// Starts kernels: the one file with CUDA's own launch syntax. All else is C++, so that tests/emulated_cuda
// can put another in its place and run the kernels on the CPU.
#pragma once

#include "kernels/cuda/launch_options.cuh"
#include "src/device/cuda_check.h"

namespace tessera::kernels::cuda {

// EnvironmentError naming `op` where the launch is refused.
template <class... Parameters, class... Arguments>
void start(const ComputeContext& context, const char* op, const Launch& launch, void (*kernel)(Parameters...),
           const Arguments&... arguments) {
  kernel<<<launch.blocks, launch.threads, launch.shared_bytes, stream_of(context)>>>(arguments...);
  device::check_cuda(cudaGetLastError(), op);
}

// The shared memory of a block that its launch asked for.
__device__ inline float* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char memory[];
  return reinterpret_cast<float*>(memory);
}

}  // namespace tessera::kernels::cuda
