// What the calls of the runtime and of the driver share of streams.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <utility>

#include "tests/emulated_cuda/stream_work.h"

struct CUstream_st {
  std::shared_ptr<tessera::emulated_cuda::StreamWork> work;
  bool held_next = false;

  void hold_if_asked() {
    if (std::exchange(held_next, false)) work->hold();
  }
};

namespace tessera::emulated_cuda {

// Whether a call is about what is another GPU's than the thread's current one, on which it makes a context.
// Waits for whoever holds the driver.
bool is_elsewhere(int ordinal);
void enter_driver(int ordinal);
// Of a call that waits for a stream, or asks about it: not while it is captured.
bool spoils_capture(const StreamWork& work);
// The process has a context on this GPU.
void note_context(int ordinal);

}  // namespace tessera::emulated_cuda
