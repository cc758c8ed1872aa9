// Owning handles of the CUDA runtime's objects, which destroy them.
#pragma once

#include <memory>
#include <type_traits>

#include "src/device/cuda_check.h"

namespace tessera::device {

template <class Handle, cudaError_t (*destroy)(Handle)>
struct DestroyCuda {
  void operator()(Handle handle) const noexcept { ignore_cuda(destroy(handle)); }
};
template <class Handle, cudaError_t (*destroy)(Handle)>
using CudaHandle = std::unique_ptr<std::remove_pointer_t<Handle>, DestroyCuda<Handle, destroy>>;

using CudaEvent = CudaHandle<cudaEvent_t, &cudaEventDestroy>;
using CudaStreamHandle = CudaHandle<cudaStream_t, &cudaStreamDestroy>;

// Makes an event on the current GPU. `flags`: cudaEventDefault to measure times between events, else
// cudaEventDisableTiming.
inline CudaEvent make_cuda_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags");
  return CudaEvent(event);
}

}  // namespace tessera::device
