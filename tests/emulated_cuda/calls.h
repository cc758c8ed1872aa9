// What all emulated calls share: the GPUs there are, what CUDA keeps for each thread that calls, errors, and
// calls that tests have fail.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <map>
#include <string>
#include <utility>

namespace tessera::emulated_cuda {

constexpr int kGpus = 9;  // one more than a sweep of the ordered chain takes
constexpr int kUrgent = -5;

struct CallingThread {
  int gpu = 0;  // the current one
  // Whether the driver has a context for this thread: cudaGetDevice names GPU 0 without, and makes none.
  bool has_context = false;
  cudaError_t last_error = cudaSuccess;  // of its calls, until cudaGetLastError
};
inline CallingThread& calling_thread() {
  thread_local CallingThread one;
  return one;
}

// Of the kernels that are loaded there, a page each.
std::size_t code_bytes(int ordinal);

// Counts a call. Not cudaSuccess: what it returns instead of being done, because a test says so or because
// the thread's GPU has a fault. That of the runtime is left to the thread's cudaGetLastError.
cudaError_t begin_call(const char* name);
cudaError_t begin_driver_call(const char* name);
// Leaves the result of a call, if it is an error, to the thread's cudaGetLastError. Returns it.
cudaError_t end_call(cudaError_t result);

// A call of the runtime: `body`, with begin_call() and end_call() around it.
template <class Body>
cudaError_t call_runtime(const char* name, const Body& body) {
  const cudaError_t refused = begin_call(name);
  return refused != cudaSuccess ? refused : end_call(body());
}

// The same of calls that CUDA does not allow a thread that captures (capture.h): they spoil what it captures.
cudaError_t begin_unsafe_call(const char* name);
template <class Body>
cudaError_t call_unsafe(const char* name, const Body& body) {
  const cudaError_t refused = begin_unsafe_call(name);
  return refused != cudaSuccess ? refused : end_call(body());
}

// An error of a kernel, such as cudaErrorIllegalAddress: the GPU does nothing more, and every call of a
// thread whose GPU it is fails with that error, until mend_gpu(). On hardware until the process ends.
void break_gpu(int ordinal, cudaError_t error);
void mend_gpu(int ordinal);
cudaError_t fault_of(int ordinal);  // cudaSuccess: none
// As by a kernel behind what the stream was given.
void break_gpu_behind(cudaStream_t stream, cudaError_t error);

// The count-th call of that name from now on, of any thread, fails with `error`, without being done; the
// first is
// 1. Kernels are launched by "cudaLaunchKernel". One such failure at a time; count 0: none.
void fail_call(const std::string& name, int count, cudaError_t error);
// By name, since forget_calls().
std::map<std::string, int> calls_made();
void forget_calls();

// From now on cudaEventQuery says of one in `one_in` events that were reached that they are not ready yet,
// never thrice in a row of the same event. 0: of none. EMULATED_CUDA_NOT_READY sets it for the process; 8 if
// unset.
void be_slow_to_see(unsigned one_in);
bool seems_not_ready();

// What the process has taken and not given back.
struct Taken {
  int streams = 0, events = 0;
  std::size_t bytes = 0;  // of all GPUs, and pinned
  bool operator==(const Taken&) const = default;
};
Taken taken();
void count_stream(int by);
void count_event(int by);

}  // namespace tessera::emulated_cuda
