// The emulated GPU's memory, streams and events.
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/emulated_cuda/emulator.h"
#include "tests/emulated_cuda/nccl_memory.h"

namespace tessera::emulated_cuda {
namespace {

constexpr std::size_t kPage = 4096;
constexpr int kGpus = 9;  // one more than a sweep of the ordered chain takes

struct Memory {
  std::recursive_mutex mutex;  // of whoever works with it
  std::map<void*, std::size_t> ranges;
  int accesses = 0;

  void protect(int how) const {
    for (const auto& [begin, bytes] : ranges) mprotect(begin, bytes, how);
  }
};
Memory& memory() {
  static Memory one;
  return one;
}

}  // namespace

Access::Access() {
  memory().mutex.lock();
  if (memory().accesses++ == 0) memory().protect(PROT_READ | PROT_WRITE);
}
Access::~Access() {
  if (--memory().accesses == 0) memory().protect(PROT_NONE);
  memory().mutex.unlock();
}

}  // namespace tessera::emulated_cuda

using tessera::emulated_cuda::Access;
using tessera::emulated_cuda::kGpus;
using tessera::emulated_cuda::kPage;
using tessera::emulated_cuda::memory;

namespace tessera::emulated_cuda {

// Of a stream, which it may outlive. What is given to it is done at once, unless it is held.
struct StreamWork {
  int ordinal = 0;
  std::atomic<bool> held{false}, held_next{false};
};

}  // namespace tessera::emulated_cuda

using tessera::emulated_cuda::StreamWork;

struct CUstream_st {
  std::shared_ptr<StreamWork> work = std::make_shared<StreamWork>();
};
struct CUevent_st {
  int ordinal = 0;
  std::mutex mutex;                       // guards the next
  std::shared_ptr<StreamWork> waits_for;  // held when it was recorded
  bool timed = false, recorded = false;
  std::chrono::steady_clock::time_point time;  // of being recorded
};

namespace tessera::emulated_cuda {

void hold(cudaStream_t stream) { stream->work->held.store(true); }
void hold_behind_next_event(cudaStream_t stream) { stream->work->held_next.store(true); }
void release(cudaStream_t stream) { release(*stream->work); }
void release(StreamWork& work) { work.held.store(false); }
std::shared_ptr<StreamWork> work_of(cudaStream_t stream) { return stream->work; }

namespace {

struct AllWork {
  std::mutex mutex;
  std::vector<std::weak_ptr<StreamWork>> of_streams;
};
AllWork& all_work() {
  static AllWork one;
  return one;
}

bool is_busy(int ordinal) {
  const std::lock_guard lock(all_work().mutex);
  std::erase_if(all_work().of_streams, [](const auto& one) { return one.expired(); });
  return std::ranges::any_of(all_work().of_streams, [&](const auto& one) {
    const std::shared_ptr<StreamWork> work = one.lock();
    return work && work->ordinal == ordinal && work->held.load();
  });
}

}  // namespace

void wait_for_gpu(int ordinal, const std::string& who) {
  const auto limit = std::chrono::steady_clock::now() + kForGood;
  while (is_busy(ordinal)) {
    if (std::chrono::steady_clock::now() >= limit) return note_misuse(who + " waited for good");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace tessera::emulated_cuda

namespace {

thread_local int current_gpu = 0;
std::atomic<int> waits_for_host{0}, calls_elsewhere{0};

// A call makes a context on the current GPU, whatever it is about.
bool is_elsewhere(int ordinal) {
  const bool elsewhere = current_gpu != ordinal;
  calls_elsewhere += elsewhere ? 1 : 0;
  return elsewhere;
}

}  // namespace

int tessera::emulated_cuda::host_waits() { return waits_for_host.load(); }
int tessera::emulated_cuda::calls_on_another_gpu() { return calls_elsewhere.load(); }

cudaError_t cudaMalloc(void** result, std::size_t bytes) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  void* const begin = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) return cudaErrorMemoryAllocation;
  const std::lock_guard lock(memory().mutex);
  memory().ranges[begin] = bytes;
  *result = begin;
  return cudaSuccess;
}

cudaError_t cudaFree(void* begin) {
  tessera::emulated_cuda::note_freed(begin);
  const std::lock_guard lock(memory().mutex);
  const auto found = memory().ranges.find(begin);
  if (found == memory().ranges.end()) return begin == nullptr ? cudaSuccess : cudaErrorInvalidValue;
  munmap(begin, found->second);
  memory().ranges.erase(found);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** result, std::size_t bytes, unsigned) {
  *result = ::operator new(bytes, std::align_val_t(4096));
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* begin) {
  ::operator delete(begin, std::align_val_t(4096));
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  const Access access;
  std::memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (is_elsewhere(stream->work->ordinal)) return cudaErrorInvalidValue;
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemsetAsync(void* begin, int value, std::size_t bytes, cudaStream_t) {
  const Access access;
  std::memset(begin, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t{1} << 30;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = kGpus, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {.name = "emulated",
                 .totalGlobalMem = std::size_t{1} << 30,
                 .major = 8,
                 .minor = 0,
                 .multiProcessorCount = 1};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 0, cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, cudaSuccess;
}
cudaError_t cudaInitDevice(int, unsigned, unsigned) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* ordinal) { return *ordinal = current_gpu, cudaSuccess; }
cudaError_t cudaSetDevice(int ordinal) {
  if (ordinal < 0 || ordinal >= kGpus) return cudaErrorInvalidValue;
  return current_gpu = ordinal, cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = new CUstream_st;
  (*stream)->work->ordinal = current_gpu;
  tessera::emulated_cuda::AllWork& all = tessera::emulated_cuda::all_work();
  const std::lock_guard lock(all.mutex);
  return all.of_streams.push_back((*stream)->work), cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* ordinal) {
  return *ordinal = stream->work->ordinal, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  is_elsewhere(stream->work->ordinal);
  return delete stream, cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() {
  return tessera::emulated_cuda::wait_for_gpu(current_gpu, "cudaDeviceSynchronize"), cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st;
  (*event)->ordinal = current_gpu;
  return (*event)->timed = flags == cudaEventDefault, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  is_elsewhere(event->ordinal);
  return delete event, cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (is_elsewhere(stream->work->ordinal) || event->ordinal != stream->work->ordinal)
    return cudaErrorInvalidValue;
  {
    const std::lock_guard lock(event->mutex);
    event->waits_for = stream->work->held.load() ? stream->work : nullptr;
  }
  event->recorded = true;
  event->time = std::chrono::steady_clock::now();
  if (stream->work->held_next.exchange(false)) stream->work->held.store(true);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (is_elsewhere(event->ordinal)) return cudaErrorInvalidValue;
  const std::lock_guard lock(event->mutex);
  return event->waits_for && event->waits_for->held.load() ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  for (const cudaEvent_t event : {start, end}) {
    if (!event->timed || !event->recorded) return cudaErrorInvalidValue;
    if (const cudaError_t result = cudaEventQuery(event); result != cudaSuccess) return result;
  }
  return *ms = std::chrono::duration<float, std::milli>(end->time - start->time).count(), cudaSuccess;
}

CUresult cuStreamWaitValue32(CUstream, CUdeviceptr address, cuuint32_t value, unsigned) {
  ++waits_for_host;
  const auto& word = *reinterpret_cast<const std::atomic<std::uint32_t>*>(address);
  while (static_cast<std::int32_t>(word.load() - value) < 0) std::this_thread::yield();
  return CUDA_SUCCESS;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const bool known = std::string_view(name) == "cuStreamWaitValue32";
  *function = known ? reinterpret_cast<void*>(&cuStreamWaitValue32) : nullptr;
  *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t error) {
  constexpr const char* kNames[] = {"cudaSuccess", "cudaErrorInvalidValue", "cudaErrorMemoryAllocation",
                                    "cudaErrorNotReady"};
  return kNames[error];
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
cudaError_t set_dynamic_shared_bytes(int bytes) {
  return bytes <= 163 * 1024 ? cudaSuccess : cudaErrorInvalidValue;
}
