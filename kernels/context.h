// The arguments of every kernel besides its tensors: device, number of threads, and scratch memory. Owns
// nothing.
#pragma once

#include <cstdint>

#include "tessera/target.h"

namespace tessera::kernels {

// Scratch memory that the caller owns, aligned to 64 bytes (256 on a device). Its contents before and after a
// call have no meaning. Two calls that may run at the same time need two workspaces.
struct Workspace {
  void* data = nullptr;
  std::int64_t bytes = 0;
};

// On the CPU kernels run on the calling thread and a team of `threads` - 1 others; with 1 thread no team is
// opened. On CUDA a call enqueues its work on `stream` and returns. It never waits for the device; errors of
// the work appear when the stream is synchronized. Tensors, workspace and results then lie in memory of the
// calling thread's current device, unless an op says otherwise.
// Any number of threads may call kernels at once. A kernel allocates nothing of note after the first call
// with a given shape on a thread. A workspace smaller than the op's *_workspace_bytes() throws UsageError.
struct ComputeContext {
  int threads = 1;
  Workspace workspace;
  DeviceType device = DeviceType::cpu;
  void* stream = nullptr;  // a cudaStream_t; null on the CPU

  constexpr Target target() const { return {threads, device}; }
};

}  // namespace tessera::kernels
