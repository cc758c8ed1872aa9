// What all emulated calls share: the GPUs there are, and what CUDA keeps for each thread that calls.
#pragma once

#include <cstddef>

namespace tessera::emulated_cuda {

constexpr int kGpus = 9;  // one more than a sweep of the ordered chain takes
constexpr int kUrgent = -5;

struct CallingThread {
  int gpu = 0;  // the current one
  // Whether the driver has a context for this thread: cudaGetDevice names GPU 0 without, and makes none.
  bool has_context = false;
};
inline CallingThread& calling_thread() {
  thread_local CallingThread one;
  return one;
}

// Of the kernels that are loaded there, a page each.
std::size_t code_bytes(int ordinal);

}  // namespace tessera::emulated_cuda
