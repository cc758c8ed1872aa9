// The emulated GPU's memory, streams and events.
#include <cuda_runtime.h>
#include <sys/mman.h>

#include <cstring>
#include <map>

#include "tests/emulated_cuda/emulator.h"

namespace tessera::emulated_cuda {
namespace {

constexpr std::size_t kPage = 4096;

struct Memory {
  std::map<void*, std::size_t> ranges;
  int accesses = 0;

  void protect(int how) const {
    for (const auto& [begin, bytes] : ranges) mprotect(begin, bytes, how);
  }
};
Memory& memory() {
  static Memory one;
  return one;
}

}  // namespace

Access::Access() {
  if (memory().accesses++ == 0) memory().protect(PROT_READ | PROT_WRITE);
}
Access::~Access() {
  if (--memory().accesses == 0) memory().protect(PROT_NONE);
}

}  // namespace tessera::emulated_cuda

using tessera::emulated_cuda::Access;
using tessera::emulated_cuda::kPage;
using tessera::emulated_cuda::memory;

// Handles only; what is given to a stream is done at once.
struct CUstream_st {};
struct CUevent_st {};

cudaError_t cudaMalloc(void** result, std::size_t bytes) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  void* const begin = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) return cudaErrorMemoryAllocation;
  memory().ranges[begin] = bytes;
  *result = begin;
  return cudaSuccess;
}

cudaError_t cudaFree(void* begin) {
  const auto found = memory().ranges.find(begin);
  if (found == memory().ranges.end()) return begin == nullptr ? cudaSuccess : cudaErrorInvalidValue;
  munmap(begin, found->second);
  memory().ranges.erase(found);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** result, std::size_t bytes, unsigned) {
  *result = ::operator new(bytes, std::align_val_t(256));
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* begin) {
  ::operator delete(begin, std::align_val_t(256));
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  const Access access;
  std::memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemsetAsync(void* begin, int value, std::size_t bytes, cudaStream_t) {
  const Access access;
  std::memset(begin, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t{1} << 30;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {.name = "emulated",
                 .totalGlobalMem = std::size_t{1} << 30,
                 .major = 8,
                 .minor = 0,
                 .multiProcessorCount = 1};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 0, cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, cudaSuccess;
}
cudaError_t cudaInitDevice(int, unsigned, unsigned) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* ordinal) { return *ordinal = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int ordinal) { return ordinal == 0 ? cudaSuccess : cudaErrorInvalidValue; }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return *stream = new CUstream_st, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete stream, cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = new CUevent_st, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }

cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t error) {
  constexpr const char* kNames[] = {"cudaSuccess", "cudaErrorInvalidValue", "cudaErrorMemoryAllocation",
                                    "cudaErrorNotReady"};
  return kNames[error];
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
cudaError_t set_dynamic_shared_bytes(int bytes) {
  return bytes <= 163 * 1024 ? cudaSuccess : cudaErrorInvalidValue;
}
