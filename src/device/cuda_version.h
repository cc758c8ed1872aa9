// What differs between the versions of CUDA that Tessera builds with, 12.4 and later. Nothing else asks for
// the version. Calls that came later, such as cudaStreamGetDevice (12.8), are not used: a program that has
// them needs a driver that has them, too.
#pragma once

#include <cuda_runtime_api.h>

namespace tessera::device {

static_assert(CUDART_VERSION >= 12040, "CUDA 12.4 or later is needed");

// The driver's call of this name, as it is since CUDA 12.0. cudaGetDriverEntryPointByVersion came with 12.5;
// in 13 the other is deprecated.
inline cudaError_t ask_for_driver_call(const char* name, void** function,
                                       cudaDriverEntryPointQueryResult* found) {
#if CUDART_VERSION >= 12050
  return cudaGetDriverEntryPointByVersion(name, function, 12000, cudaEnableDefault, found);
#else
  return cudaGetDriverEntryPoint(name, function, cudaEnableDefault, found);
#endif
}

}  // namespace tessera::device
