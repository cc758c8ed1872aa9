#include "tests/emulated_cuda/calls.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <random>

#include "tests/emulated_cuda/emulator.h"
#include "tests/emulated_cuda/hardware_queue.h"
#include "tests/emulated_cuda/memory.h"
#include "tests/emulated_cuda/stream_work.h"

namespace tessera::emulated_cuda {
namespace {

struct Calls {
  std::mutex mutex;  // guards the next
  std::map<std::string, int> made;
  std::string failing;
  int until_failure = 0;  // calls of that name; 0: none fails
  cudaError_t error = cudaSuccess;
};
// Never destroyed: threads of streams may go on to the end of the process.
Calls& calls() {
  static auto* const one = new Calls;
  return *one;
}

std::atomic<cudaError_t>& fault(int ordinal) {
  static std::array<std::atomic<cudaError_t>, kGpus> of_gpus{};
  return of_gpus[static_cast<std::size_t>(ordinal)];
}

std::atomic<int> streams{0}, events{0};

bool is_sticky(cudaError_t error) {
  return error == cudaErrorIllegalAddress || error == cudaErrorLaunchFailure || error == cudaErrorAssert;
}

std::atomic<unsigned>& slowness() {
  static std::atomic<unsigned> one_in = [] {
    const char* const text = std::getenv("EMULATED_CUDA_NOT_READY");
    return text == nullptr ? 8u : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
  }();
  return one_in;
}

}  // namespace

cudaError_t begin_call(const char* name) { return end_call(begin_driver_call(name)); }

cudaError_t begin_driver_call(const char* name) {
  hardware_queues();  // as they are said to be now, for good
  const int gpu = calling_thread().gpu;
  const std::lock_guard lock(calls().mutex);
  ++calls().made[name];
  if (calls().until_failure > 0 && calls().failing == name && --calls().until_failure == 0) {
    if (is_sticky(calls().error)) break_gpu(gpu, calls().error);
    return calls().error;
  }
  return fault_of(gpu);
}

cudaError_t end_call(cudaError_t result) {
  if (result != cudaSuccess) calling_thread().last_error = result;
  return result;
}

void break_gpu(int ordinal, cudaError_t error) { fault(ordinal).store(error); }
void mend_gpu(int ordinal) { fault(ordinal).store(cudaSuccess); }
cudaError_t fault_of(int ordinal) { return fault(ordinal).load(); }
void break_gpu_behind(cudaStream_t stream, cudaError_t error) {
  const auto work = work_of(stream);
  work->give([ordinal = work->ordinal(), error] { break_gpu(ordinal, error); });
}

void fail_call(const std::string& name, int count, cudaError_t error) {
  const std::lock_guard lock(calls().mutex);
  calls().failing = name;
  calls().until_failure = count;
  calls().error = error;
}
std::map<std::string, int> calls_made() {
  const std::lock_guard lock(calls().mutex);
  return calls().made;
}
void forget_calls() {
  const std::lock_guard lock(calls().mutex);
  calls().made.clear();
}

void be_slow_to_see(unsigned one_in) { slowness().store(one_in); }
bool seems_not_ready() {
  thread_local std::minstd_rand draw(1);
  const unsigned one_in = slowness().load();
  return one_in > 0 && draw() % one_in == 0;
}

Taken taken() { return {.streams = streams.load(), .events = events.load(), .bytes = memory().bytes()}; }
void count_stream(int by) { streams += by; }
void count_event(int by) { events += by; }

}  // namespace tessera::emulated_cuda

cudaError_t cudaGetLastError() {
  using namespace tessera::emulated_cuda;
  CallingThread& thread = calling_thread();
  const cudaError_t sticky = fault_of(thread.gpu), last = thread.last_error;
  thread.last_error = cudaSuccess;
  return sticky != cudaSuccess ? sticky : last;
}

namespace {

struct Launches {
  std::mutex mutex;
  std::map<std::string, int> of_ops;
};
Launches& all_launches() {
  static auto* const one = new Launches;
  return *one;
}

}  // namespace

void tessera::emulated_cuda::count_launch(const char* op) {
  const std::lock_guard lock(all_launches().mutex);
  ++all_launches().of_ops[op];
}
std::map<std::string, int> tessera::emulated_cuda::launches() {
  const std::lock_guard lock(all_launches().mutex);
  return all_launches().of_ops;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorDeviceUninitialized:
      return "cudaErrorDeviceUninitialized";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchOutOfResources:
      return "cudaErrorLaunchOutOfResources";
    case cudaErrorAssert:
      return "cudaErrorAssert";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorNotSupported:
      return "cudaErrorNotSupported";
    case cudaErrorIllegalState:
      return "cudaErrorIllegalState";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureMerge:
      return "cudaErrorStreamCaptureMerge";
    case cudaErrorStreamCaptureUnmatched:
      return "cudaErrorStreamCaptureUnmatched";
    case cudaErrorStreamCaptureUnjoined:
      return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorGraphExecUpdateFailure:
      return "cudaErrorGraphExecUpdateFailure";
    case cudaErrorStreamCaptureIsolation:
      return "cudaErrorStreamCaptureIsolation";
    case cudaErrorStreamCaptureImplicit:
      return "cudaErrorStreamCaptureImplicit";
    case cudaErrorCapturedEvent:
      return "cudaErrorCapturedEvent";
    case cudaErrorStreamCaptureWrongThread:
      return "cudaErrorStreamCaptureWrongThread";
  }
  return "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
