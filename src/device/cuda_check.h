// How results of the CUDA runtime are looked at: every call goes through one of these.
#pragma once

#include <cuda_runtime_api.h>

namespace tessera::device {

// EnvironmentError that names the call, the error, the device, and what the thread is busy with (activity.h).
void check_cuda(cudaError_t result, const char* call);

// For destructors, whose errors nobody could act on. One that does not stick is cleared, so that it is not
// taken for a later call's.
void ignore_cuda(cudaError_t result) noexcept;

// The calling thread's device while this lives; the embedder's comes back afterwards.
class CurrentDevice {
 public:
  explicit CurrentDevice(int ordinal);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  int ordinal_;
};

}  // namespace tessera::device
