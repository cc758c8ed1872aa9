// Stands in for the file of this name in kernels/cuda, see cuda_runtime.h.
#pragma once

#include <tuple>

#include "kernels/cuda/launch_options.cuh"
#include "src/device/cuda_check.h"
#include "tests/emulated_cuda/emulator.h"

namespace tessera::kernels::cuda {

template <class... Parameters, class... Arguments>
void start(const ComputeContext& context, const char* op, const Launch& launch, void (*kernel)(Parameters...),
           const Arguments&... arguments) {
  const std::tuple<Parameters...> copied(arguments...);
  emulated_cuda::count_launch(op);
  emulated_cuda::launch(stream_of(context),
                        {.kernel = reinterpret_cast<const void*>(kernel),
                         .blocks = launch.blocks,
                         .threads = launch.threads,
                         .shared_bytes = launch.shared_bytes},
                        [=] { std::apply(kernel, copied); });
  device::check_cuda(cudaGetLastError(), op);
}

inline float* dynamic_shared() { return emulated_cuda::dynamic_shared(); }

}  // namespace tessera::kernels::cuda
