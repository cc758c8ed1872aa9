#include "src/device/cuda_driver.h"

#include "src/device/cuda_check.h"
#include "src/device/cuda_version.h"

namespace tessera::device {

void* find_driver_call(const char* name) noexcept {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t result = ask_for_driver_call(name, &function, &found);
  ignore_cuda(result);
  return result == cudaSuccess && found == cudaDriverEntryPointSuccess ? function : nullptr;
}

}  // namespace tessera::device
