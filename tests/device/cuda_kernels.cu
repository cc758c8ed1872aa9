#include "tests/device/cuda_kernels.h"

namespace tessera::cuda_test {
namespace {

__global__ void hold(const volatile int* release) {
  while (*release == 0) __nanosleep(1000);
}

__global__ void next(int* to, const int* from) { *to = *from + 1; }

__global__ void after_next(int* to, const int* from) { *to = *from + 2; }

__global__ void trap() { __trap(); }

cudaStream_t native(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

void load_kernels() {
  cudaFuncAttributes attributes;
  for (const void* kernel : {reinterpret_cast<const void*>(&hold), reinterpret_cast<const void*>(&next),
                             reinterpret_cast<const void*>(&trap)})
    cudaFuncGetAttributes(&attributes, kernel);
}

void enqueue_hold(void* stream, const volatile int* release) { hold<<<1, 1, 0, native(stream)>>>(release); }
void enqueue_next(void* stream, int* to, const int* from) { next<<<1, 1, 0, native(stream)>>>(to, from); }
void enqueue_after_next(void* stream, int* to, const int* from) {
  after_next<<<1, 1, 0, native(stream)>>>(to, from);
}
void enqueue_trap(void* stream) { trap<<<1, 1, 0, native(stream)>>>(); }

}  // namespace tessera::cuda_test
