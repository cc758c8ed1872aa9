#include "tests/device/fake_cuda.h"

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <set>
#include <string_view>

// An event counts how often it was recorded, and up to which of these its stream has come, and when.
struct CUevent_st {
  bool timed = false;
  std::uint64_t recorded = 0, reached = 0;
  float reached_ms = 0;
};
// Each operation is an event's record, or the wait for one, or a word of the host's memory that is waited for
// or written.
struct CUstream_st {
  struct Operation {
    CUevent_st* event;
    std::uint64_t count;
    bool wait;
    std::atomic<std::uint32_t>* word = nullptr;
  };
  std::deque<Operation> operations;
  bool held = false;
};

namespace tessera::fake_cuda {
namespace {

std::set<CUstream_st*> streams;

bool advance(CUstream_st& stream) {
  if (stream.held || stream.operations.empty()) return false;
  const auto [event, count, wait, word] = stream.operations.front();
  if (word != nullptr && !wait) word->store(static_cast<std::uint32_t>(count));
  if (word != nullptr && wait &&
      static_cast<std::int32_t>(word->load() - static_cast<std::uint32_t>(count)) < 0)
    return false;
  if (event != nullptr && wait && event->reached < count) return false;
  if (event != nullptr && !wait)
    event->reached = count, event->reached_ms = state().clock ? state().clock() : state().now_ms;
  stream.operations.pop_front();
  return true;
}

void advance_all() {
  for (bool any = true; any;) {
    any = false;
    for (CUstream_st* stream : streams) any |= advance(*stream);
  }
}

}  // namespace

State& state() {
  static State one;
  return one;
}

void hold(void* stream) { static_cast<CUstream_st*>(stream)->held = true; }
void release(void* stream) { static_cast<CUstream_st*>(stream)->held = false; }

}  // namespace tessera::fake_cuda

using namespace tessera::fake_cuda;

cudaError_t cudaGetDevice(int* device) { return *device = state().current_device, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return state().current_device = device, cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorFake"; }
const char* cudaGetErrorString(cudaError_t) { return "a fault of the test's"; }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  streams.insert(*stream = new CUstream_st);
  ++state().streams;
  state().last_flags = flags;
  state().last_priority = priority;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  streams.erase(stream);
  delete stream;
  --state().streams;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (state().events == state().most_events) return cudaErrorMemoryAllocation;
  *event = new CUevent_st;
  (*event)->timed = (flags & cudaEventDisableTiming) == 0;
  ++state().events;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  --state().events;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (state().fault != cudaSuccess) return state().fault;
  if (event->timed && state().before_record) state().before_record();
  stream->operations.push_back({event, ++event->recorded, false});
  if (!event->timed || !state().after_record) return cudaSuccess;
  advance_all();
  return state().after_record(), cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  ++state().waits;
  stream->operations.push_back({event, event->recorded, true});
  return cudaSuccess;
}

namespace {

CUresult CUDAAPI wait_value(CUstream stream, CUdeviceptr word, cuuint32_t value, unsigned flags) {
  if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_INVALID_VALUE;
  ++state().host_waits;
  stream->operations.push_back({nullptr, value, true, reinterpret_cast<std::atomic<std::uint32_t>*>(word)});
  return CUDA_SUCCESS;
}
CUresult CUDAAPI write_value(CUstream stream, CUdeviceptr word, cuuint32_t value, unsigned) {
  stream->operations.push_back({nullptr, value, false, reinterpret_cast<std::atomic<std::uint32_t>*>(word)});
  return CUDA_SUCCESS;
}

cudaError_t find_call(const char* name, void** function, cudaDriverEntryPointQueryResult* found) {
  if (std::string_view(name) == "cuStreamWaitValue32")
    *function = reinterpret_cast<void*>(&wait_value);
  else if (std::string_view(name) == "cuStreamWriteValue32")
    *function = reinterpret_cast<void*>(&write_value);
  else
    return cudaErrorInvalidValue;
  return *found = cudaDriverEntryPointSuccess, cudaSuccess;
}

}  // namespace

// Which of the two is called depends on CUDA's version (src/device/cuda_version.h).
cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult* found) {
  return find_call(name, function, found);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  return find_call(name, function, found);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* argument) {
  return function(argument), cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  return *memory = std::malloc(bytes), cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) { return std::free(memory), cudaSuccess; }

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (state().fault != cudaSuccess) return state().fault;
  advance_all();
  return event->reached == event->recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  advance_all();
  for (const CUevent_st* event : {start, end}) {
    if (!event->timed || event->recorded == 0) return cudaErrorInvalidResourceHandle;
    if (event->reached != event->recorded) return cudaErrorNotReady;
  }
  return *ms = end->reached_ms - start->reached_ms, cudaSuccess;
}
