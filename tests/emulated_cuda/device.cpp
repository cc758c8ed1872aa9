// What the emulated GPUs say of themselves, and how much shared memory a kernel may have.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>

#include "tests/emulated_cuda/calls.h"
#include "tests/emulated_cuda/emulator.h"
#include "tests/emulated_cuda/kernels.h"

using namespace tessera::emulated_cuda;

namespace {

constexpr int kMultiprocessors = 2;

std::atomic<int> served_version{CUDART_VERSION};

struct SharedBytes {
  std::mutex mutex;
  std::map<const void*, std::size_t> of_kernels;  // that asked
};
SharedBytes& shared_bytes() {
  static auto* const one = new SharedBytes;
  return *one;
}

}  // namespace

// The first GPU is of the architecture that is set, an Ampere unless it is, the others are Hoppers at least.
int tessera::emulated_cuda::compute_capability(int ordinal) {
  return ordinal == 0 ? architecture().number : std::max(architecture().number, 90);
}

void tessera::emulated_cuda::install_driver(int version) { served_version = version; }

cudaError_t cudaDriverGetVersion(int* version) {
  return call_runtime("cudaDriverGetVersion", [&] { return *version = served_version.load(), cudaSuccess; });
}
cudaError_t cudaGetDeviceCount(int* count) {
  return call_runtime("cudaGetDeviceCount", [&] {
    if (served_version.load() < CUDART_VERSION / 1000 * 1000) return cudaErrorInsufficientDriver;
    return *count = kGpus, cudaSuccess;
  });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  return call_runtime("cudaGetDeviceProperties", [&] {
    const int number = compute_capability(ordinal);
    *properties = {.name = "emulated",
                   .totalGlobalMem = std::size_t{1} << 30,
                   .major = number / 10,
                   .minor = number % 10,
                   .multiProcessorCount = kMultiprocessors};
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int ordinal) {
  return call_runtime("cudaDeviceGetPCIBusId", [&] {
    std::snprintf(id, static_cast<std::size_t>(length), "0000:%02x:00.0", static_cast<unsigned>(ordinal));
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int ordinal) {
  return call_runtime("cudaDeviceGetAttribute", [&] {
    *value = attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin
                 ? static_cast<int>(architecture().most_shared_bytes)
             : attribute == cudaDevAttrMultiProcessorCount    ? kMultiprocessors
             : attribute == cudaDevAttrComputeCapabilityMajor ? compute_capability(ordinal) / 10
             : attribute == cudaDevAttrComputeCapabilityMinor ? compute_capability(ordinal) % 10
                                                              : 0;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return call_runtime("cudaDeviceGetStreamPriorityRange",
                      [&] { return *least = 0, *greatest = kUrgent, cudaSuccess; });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  return call_runtime("cudaFuncGetAttributes",
                      [&] { return *attributes = {kernel_of(kernel).static_shared_bytes()}, cudaSuccess; });
}
cudaError_t set_dynamic_shared_bytes(const void* kernel, int bytes) {
  return call_runtime("cudaFuncSetAttribute", [&] {
    const std::size_t asked = static_cast<std::size_t>(bytes);
    if (bytes < 0 || asked + kernel_of(kernel).static_shared_bytes() > architecture().most_shared_bytes)
      return cudaErrorInvalidValue;
    const std::lock_guard lock(shared_bytes().mutex);
    return shared_bytes().of_kernels[kernel] = asked, cudaSuccess;
  });
}
cudaError_t tessera::emulated_cuda::allow_shared(const void* kernel, std::size_t bytes) {
  const std::size_t own = kernel_of(kernel).static_shared_bytes();
  const std::lock_guard lock(shared_bytes().mutex);
  const auto asked = shared_bytes().of_kernels.find(kernel);
  const std::size_t most = asked != shared_bytes().of_kernels.end()
                               ? asked->second
                               : kPlainSharedBytes - std::min(own, kPlainSharedBytes);
  return bytes <= most && own <= kPlainSharedBytes ? cudaSuccess : cudaErrorInvalidValue;
}
