// What the CUDA runtime hands out by a handle, giving itself back.
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

// On the current GPU; cudaEventDefault where times between events are wanted, else cudaEventDisableTiming.
inline CudaEvent make_cuda_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags");
  return CudaEvent(event);
}

}  // namespace tessera::device
