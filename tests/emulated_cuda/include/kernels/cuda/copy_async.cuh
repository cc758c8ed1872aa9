// Stands in for the file of this name in kernels/cuda, see cuda_runtime.h.
#pragma once

#include "tests/emulated_cuda/emulator.h"

namespace tessera::kernels::cuda {

inline void copy_async(void* shared, const void* from) { emulated_cuda::copy_async(shared, from); }
inline void close_copies() { emulated_cuda::close_copies(); }
template <int kOpen>
void wait_for_copies() {
  emulated_cuda::wait_for_copies(kOpen);
}

}  // namespace tessera::kernels::cuda
