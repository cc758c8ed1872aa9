// What the emulated GPUs say of themselves, and how much shared memory a kernel may have.
#include <cuda_runtime.h>

#include <cstdio>
#include <map>
#include <mutex>

#include "tests/emulated_cuda/calls.h"
#include "tests/emulated_cuda/emulator.h"

using tessera::emulated_cuda::kGpus;
using tessera::emulated_cuda::kUrgent;

namespace {

constexpr int kMultiprocessors = 2;
constexpr std::size_t kPlainSharedBytes = 48 * 1024;
constexpr int kMostSharedBytes = 163 * 1024, kStaticSharedBytes = 512;

}  // namespace

cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = kGpus, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {.name = "emulated",
                 .totalGlobalMem = std::size_t{1} << 30,
                 .major = 8,
                 .minor = 0,
                 .multiProcessorCount = kMultiprocessors};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int ordinal) {
  std::snprintf(id, static_cast<std::size_t>(length), "0000:%02x:00.0", static_cast<unsigned>(ordinal));
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? kMostSharedBytes
           : attribute == cudaDevAttrMultiProcessorCount        ? kMultiprocessors
                                                                : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = kUrgent, cudaSuccess;
}

namespace {

struct SharedBytes {
  std::mutex mutex;
  std::map<const void*, std::size_t> of_kernels;  // that asked
};
SharedBytes& shared_bytes() {
  static auto* const one = new SharedBytes;
  return *one;
}

}  // namespace

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  return *attributes = {kStaticSharedBytes}, cudaSuccess;
}
cudaError_t set_dynamic_shared_bytes(const void* kernel, int bytes) {
  if (bytes > kMostSharedBytes - kStaticSharedBytes) return cudaErrorInvalidValue;
  const std::lock_guard lock(shared_bytes().mutex);
  shared_bytes().of_kernels[kernel] = static_cast<std::size_t>(bytes);
  return cudaSuccess;
}
cudaError_t tessera::emulated_cuda::allow_shared(const void* kernel, std::size_t bytes) {
  if (bytes <= kPlainSharedBytes) return cudaSuccess;
  const std::lock_guard lock(shared_bytes().mutex);
  const auto asked = shared_bytes().of_kernels.find(kernel);
  return asked != shared_bytes().of_kernels.end() && bytes <= asked->second ? cudaSuccess
                                                                            : cudaErrorInvalidValue;
}
