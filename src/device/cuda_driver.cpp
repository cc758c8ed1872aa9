#include "src/device/cuda_driver.h"

#include "src/device/cuda_check.h"

namespace tessera::device {

void* find_driver_call(const char* name) noexcept {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t result =
      cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
  ignore_cuda(result);
  return result == cudaSuccess && found == cudaDriverEntryPointSuccess ? function : nullptr;
}

}  // namespace tessera::device
