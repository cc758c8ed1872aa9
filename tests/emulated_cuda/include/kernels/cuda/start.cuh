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
  device::check_cuda(emulated_cuda::allow_shared(reinterpret_cast<const void*>(kernel), launch.shared_bytes),
                     op);
  emulated_cuda::count_launch(op);
  emulated_cuda::load(reinterpret_cast<const void*>(kernel), stream_of(context));
  device::check_cuda(emulated_cuda::launch(stream_of(context), launch.blocks, launch.threads,
                                           launch.shared_bytes, [=] { std::apply(kernel, copied); }),
                     op);
}

inline float* dynamic_shared() { return emulated_cuda::dynamic_shared(); }

}  // namespace tessera::kernels::cuda
