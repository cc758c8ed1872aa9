// What tests tell and ask the library that stands in for cuDNN. It has the functions of <cudnn_graph.h> that
// NVIDIA's frontend calls for attention, runs on the emulated GPUs, and is loaded as libcudnn.so.9. It
// computes whatever graph is described to it (interpreter.h).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::emulated_cudnn {

// All since the process began.
struct Seen {
  int handles = 0, graphs = 0, plans = 0, runs = 0;
  int calls = 0;                     // of any function that can fail
  std::int64_t engine = 0;           // of the last run
  std::int64_t workspace_bytes = 0;  // of the last run's engine
  cudaStream_t stream = nullptr;     // of the last run
};
Seen seen();
// What a handle takes of its GPU's memory.
constexpr std::size_t kHandleBytes = 48 << 10;
// Descriptors and handles that were created and not destroyed.
int left_over();

// The call that comes after `calls` more fails with CUDNN_STATUS_INTERNAL_ERROR, whichever function that is;
// cudnnBackendDestroyDescriptor() and cudnnDestroy(), whose status nobody reads, are not counted. If it reads
// an attribute, reading that fails from then on. Each thread has its own count. -1: none fails.
void fail_after(int calls);
// The function that failed so, once it has: "cudnnBackendFinalize".
std::string failed_call();

}  // namespace tessera::emulated_cudnn
