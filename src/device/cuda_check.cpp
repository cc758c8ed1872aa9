#include "src/device/cuda_check.h"

#include <fmt/format.h>

#include <string>

#include "src/device/activity.h"
#include "src/device/cuda_queues.h"
#include "tessera/error.h"

namespace tessera::device {

void check_cuda(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  cudaGetLastError();
  std::string message =
      fmt::format("{} failed: {} ({})", call, cudaGetErrorString(result), cudaGetErrorName(result));
  if (const std::string activity = Activity::current(); !activity.empty())
    message = activity + ": " + message;
  throw EnvironmentError(message);
}

void ignore_cuda(cudaError_t result) noexcept {
  if (result != cudaSuccess) cudaGetLastError();
}

void make_current(int ordinal) {
  // Of a thread that is new to CUDA the current GPU is the first one, without a context of the driver's.
  thread_local bool set = false;
  ask_for_queues();
  int current = -1;
  check_cuda(cudaGetDevice(&current), "cudaGetDevice");
  if (set && current == ordinal) return;
  check_cuda(cudaSetDevice(ordinal), "cudaSetDevice");
  set = true;
}

}  // namespace tessera::device
