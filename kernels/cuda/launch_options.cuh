// How a kernel is started: on which stream, and as how many threads.
#pragma once

#include <cuda_runtime.h>

#include "kernels/context.h"

namespace tessera::kernels::cuda {

inline cudaStream_t stream_of(const ComputeContext& context) {
  return static_cast<cudaStream_t>(context.stream);
}

struct Launch {
  dim3 blocks;
  dim3 threads;
  std::size_t shared_bytes = 0;  // of dynamic_shared()
};

}  // namespace tessera::kernels::cuda
