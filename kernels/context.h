// What every kernel is given besides its tensors: how many threads, and scratch memory. Owns nothing.
#pragma once

#include <cstdint>

namespace tessera::kernels {

// Scratch memory of the caller, 64-byte aligned; its contents before and after a call mean nothing.
// Two calls that may run at the same time need two workspaces.
struct Workspace {
  void* data = nullptr;
  std::int64_t bytes = 0;
};

// Kernels run on the calling thread and a team of `threads` - 1 more; with 1 no team is opened at all.
// Every kernel may be called from several threads at once, and allocates nothing of note after the first call
// with a given shape on a thread. A workspace smaller than the op's *_workspace_bytes() throws UsageError.
struct ComputeContext {
  int threads = 1;
  Workspace workspace;
};

}  // namespace tessera::kernels
