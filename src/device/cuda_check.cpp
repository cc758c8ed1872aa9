#include "src/device/cuda_check.h"

#include <fmt/format.h>

#include "src/device/activity.h"
#include "tessera/error.h"

namespace tessera::device {

void check_cuda(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  cudaGetLastError();
  std::string message =
      fmt::format("{} failed: {} ({})", call, cudaGetErrorString(result), cudaGetErrorName(result));
  if (int ordinal = 0; cudaGetDevice(&ordinal) == cudaSuccess) message += fmt::format(" on GPU {}", ordinal);
  if (const std::string activity = Activity::current(); !activity.empty())
    message = activity + ": " + message;
  throw EnvironmentError(message);
}

void ignore_cuda(cudaError_t result) noexcept {
  if (result != cudaSuccess) cudaGetLastError();
}

CurrentDevice::CurrentDevice(int ordinal) : ordinal_(ordinal) {
  check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
  if (before_ != ordinal_) check_cuda(cudaSetDevice(ordinal_), "cudaSetDevice");
}

CurrentDevice::~CurrentDevice() {
  if (before_ != ordinal_) ignore_cuda(cudaSetDevice(before_));
}

}  // namespace tessera::device
