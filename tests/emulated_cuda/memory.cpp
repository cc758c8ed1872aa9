#include "tests/emulated_cuda/memory.h"

#include <cuda_runtime.h>
#include <sys/mman.h>

#include <new>

#include "tests/emulated_cuda/calls.h"
#include "tests/emulated_cuda/emulator.h"
#include "tests/emulated_cuda/nccl_memory.h"

namespace tessera::emulated_cuda {

void Memory::protect(int gpu, int how) {
  const std::lock_guard lock(mutex);
  reached.clear();
  for (const auto& [begin, range] : ranges) {
    if (range.ordinal != gpu) continue;
    mprotect(const_cast<std::byte*>(begin), range.bytes, how);
    reached.emplace_back(const_cast<std::byte*>(begin), range.bytes);
  }
}

// Never destroyed: threads of streams may go on to the end of the process.
Memory& memory() {
  static auto* const one = new Memory;
  return *one;
}

Access::Access(int gpu) : gpu_(gpu) {
  memory().in_use.lock();
  memory().protect(gpu_, PROT_READ | PROT_WRITE);
}
Access::~Access() {
  memory().protect(gpu_, PROT_NONE);
  memory().in_use.unlock();
}

}  // namespace tessera::emulated_cuda

using namespace tessera::emulated_cuda;

bool tessera::emulated_cuda::reaches(int gpu, const void* begin, std::size_t bytes) {
  return memory().reaches(gpu, begin, bytes);
}

void* tessera::emulated_cuda::take_on(int gpu, std::size_t bytes) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  void* const begin = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) return nullptr;
  memory().add(begin, bytes, gpu);
  return begin;
}
cudaError_t cudaMalloc(void** result, std::size_t bytes) {
  return call_unsafe("cudaMalloc", [&] {
    *result = take_on(calling_thread().gpu, bytes);
    return *result == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

cudaError_t tessera::emulated_cuda::free_at_once(void* begin) {
  const auto range = memory().find(begin);
  if (!range) return cudaErrorInvalidValue;
  memory().remove(begin);
  munmap(begin, range->bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* begin) {
  return call_unsafe("cudaFree", [&] {
    if (begin == nullptr) return cudaSuccess;
    note_freed(begin);
    if (const auto range = memory().find(begin)) wait_for_gpu(range->ordinal, "cudaFree");
    return free_at_once(begin);
  });
}

// Aligned as it is promised, and no better.
constexpr std::size_t kHostAlignment = 256;

cudaError_t cudaHostAlloc(void** result, std::size_t bytes, unsigned) {
  return call_unsafe("cudaHostAlloc", [&] {
    void* const page = ::operator new(kHostAlignment + bytes, std::align_val_t(kPage));
    *result = static_cast<std::byte*>(page) + kHostAlignment;
    memory().add(*result, bytes, -1);
    return cudaSuccess;
  });
}
cudaError_t cudaFreeHost(void* begin) {
  return call_unsafe("cudaFreeHost", [&] {
    wait_for_gpu(calling_thread().gpu, "cudaFreeHost");
    memory().remove(begin);
    ::operator delete(static_cast<std::byte*>(begin) - kHostAlignment, std::align_val_t(kPage));
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return call_runtime("cudaMemGetInfo", [&] {
    const int gpu = calling_thread().gpu;
    *total = std::size_t{1} << 30;
    *free = *total - memory().bytes_of(gpu) - code_bytes(gpu);
    return cudaSuccess;
  });
}
