// What every kernel is given besides its tensors: where it runs, how many threads, and scratch memory. Owns
// nothing.
#pragma once

#include <cstdint>

#include "tessera/target.h"

namespace tessera::kernels {

// Scratch memory of the caller, 64-byte aligned (256 on a device); its contents before and after a call mean
// nothing. Two calls that may run at the same time need two workspaces.
struct Workspace {
  void* data = nullptr;
  std::int64_t bytes = 0;
};

// On the CPU kernels run on the calling thread and a team of `threads` - 1 more; with 1 no team is opened at
// all. On CUDA a call enqueues its work on `stream` and returns; it never waits for the device, and errors of
// the work itself show when the stream is synchronized. Tensors, workspace and results then lie in memory of
// the calling thread's current device, unless an op says otherwise.
// Every kernel may be called from several threads at once, and allocates nothing of note after the first call
// with a given shape on a thread. A workspace smaller than the op's *_workspace_bytes() throws UsageError.
struct ComputeContext {
  int threads = 1;
  Workspace workspace;
  DeviceType device = DeviceType::cpu;
  void* stream = nullptr;  // a cudaStream_t; null on the CPU

  constexpr Target target() const { return {threads, device}; }
};

}  // namespace tessera::kernels
