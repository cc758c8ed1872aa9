// Kernels for the tests of streams: work that lasts until it is told to end, and work that fails.
#pragma once

namespace tessera::cuda_test {

// Loads the kernels, but for after_next's, onto the current GPU: at their first launch that might wait for a
// kernel that is held.
void load_kernels();
// Enqueues a kernel on `stream` (a cudaStream_t) that runs until `*release`, in mapped host memory, is not 0.
void enqueue_hold(void* stream, const volatile int* release);
// Enqueues `*to = *from + 1`, in device memory.
void enqueue_next(void* stream, int* to, const int* from);
// Enqueues `*to = *from + 2`, in device memory, by a kernel that is loaded at its first launch.
void enqueue_after_next(void* stream, int* to, const int* from);
// Enqueues a kernel that ends in a trap: nothing works on that device in this process afterwards.
void enqueue_trap(void* stream);

}  // namespace tessera::cuda_test
