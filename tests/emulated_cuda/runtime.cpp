// The emulated GPU's memory, streams and events.
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/emulated_cuda/emulator.h"
#include "tests/emulated_cuda/nccl_memory.h"
#include "tests/emulated_cuda/stream_work.h"

namespace tessera::emulated_cuda {
namespace {

constexpr std::size_t kPage = 4096;
constexpr int kGpus = 9;  // one more than a sweep of the ordered chain takes

struct Range {
  std::size_t bytes;
  int ordinal;  // of the GPU; -1: the host's, pinned
};
struct Memory {
  std::mutex in_use;  // by whoever has access
  std::mutex mutex;   // guards the next
  std::map<const std::byte*, Range> ranges;

  void protect(int gpu, int how) {
    const std::lock_guard lock(mutex);
    for (const auto& [begin, range] : ranges)
      if (range.ordinal == gpu) mprotect(const_cast<std::byte*>(begin), range.bytes, how);
  }
  void add(void* begin, std::size_t bytes, int ordinal) {
    const std::lock_guard lock(mutex);
    ranges[static_cast<std::byte*>(begin)] = {bytes, ordinal};
  }
  std::optional<Range> find(void* begin) {
    const std::lock_guard lock(mutex);
    const auto found = ranges.find(static_cast<std::byte*>(begin));
    return found == ranges.end() ? std::nullopt : std::optional(found->second);
  }
  std::size_t bytes_of(int ordinal) {
    const std::lock_guard lock(mutex);
    std::size_t sum = 0;
    for (const auto& [begin, range] : ranges)
      if (range.ordinal == ordinal) sum += range.bytes;
    return sum;
  }
  void remove(void* begin) {
    const std::lock_guard lock(mutex);
    ranges.erase(static_cast<std::byte*>(begin));
  }
  // Neither a GPU's nor pinned.
  bool is_pageable(const void* at) {
    const std::lock_guard lock(mutex);
    const auto* const byte = static_cast<const std::byte*>(at);
    const auto behind = ranges.upper_bound(byte);
    return behind == ranges.begin() || byte >= std::prev(behind)->first + std::prev(behind)->second.bytes;
  }
};
// Never destroyed: threads of streams may go on to the end of the process.
Memory& memory() {
  static auto* const one = new Memory;
  return *one;
}

}  // namespace

Access::Access(int gpu) : gpu_(gpu) {
  memory().in_use.lock();
  memory().protect(gpu_, PROT_READ | PROT_WRITE);
}
Access::~Access() {
  memory().protect(gpu_, PROT_NONE);
  memory().in_use.unlock();
}

}  // namespace tessera::emulated_cuda

using tessera::emulated_cuda::Access;
using tessera::emulated_cuda::kGpus;
using tessera::emulated_cuda::kPage;
using tessera::emulated_cuda::Mark;
using tessera::emulated_cuda::memory;
using tessera::emulated_cuda::StreamWork;

struct CUstream_st {
  std::shared_ptr<StreamWork> work;
  bool held_next = false;

  void hold_if_asked() {
    if (std::exchange(held_next, false)) work->hold();
  }
};
struct CUevent_st {
  int ordinal = 0;
  bool timed = false;
  std::mutex mutex;                  // guards the next
  std::shared_ptr<const Mark> mark;  // where it was recorded last, if it was

  std::shared_ptr<const Mark> last() {
    const std::lock_guard lock(mutex);
    return mark;
  }
};

namespace tessera::emulated_cuda {

void hold(cudaStream_t stream) { stream->work->hold(); }
void hold_behind_next_mark(cudaStream_t stream) { stream->held_next = true; }
void release(cudaStream_t stream) { stream->work->release(); }
std::shared_ptr<StreamWork> work_of(cudaStream_t stream) { return stream->work; }

namespace {

// Of all streams, and the legacy stream of each GPU.
struct AllWork {
  std::mutex mutex;
  std::vector<std::weak_ptr<StreamWork>> of_streams;
  std::map<int, std::shared_ptr<StreamWork>> legacy;

  std::vector<std::shared_ptr<StreamWork>> of(int ordinal) {
    std::erase_if(of_streams, [](const auto& one) { return one.expired(); });
    std::vector<std::shared_ptr<StreamWork>> found;
    for (const auto& one : of_streams)
      if (const auto work = one.lock(); work && work->ordinal() == ordinal) found.push_back(work);
    return found;
  }
  StreamWork& legacy_of(int ordinal) {
    std::shared_ptr<StreamWork>& work = legacy[ordinal];
    if (!work) of_streams.push_back(work = StreamWork::start(ordinal, false));
    return *work;
  }
};
AllWork& all_work() {
  static auto* const one = new AllWork;
  return *one;
}

bool is_busy(int ordinal) {
  const std::lock_guard lock(all_work().mutex);
  return std::ranges::any_of(all_work().of(ordinal), [](const auto& work) { return !work->idle(); });
}

// Behind all that streams which order themselves with it were given, and ahead of all that they will be.
std::shared_ptr<Mark> give_legacy(int ordinal, std::function<void()> operation) {
  AllWork& all = all_work();
  const std::lock_guard lock(all.mutex);
  StreamWork& legacy = all.legacy_of(ordinal);
  const auto streams = all.of(ordinal);
  for (const auto& work : streams)
    if (work->ordered_with_legacy()) legacy.wait_for(work->mark());
  legacy.give(std::move(operation));
  std::shared_ptr<Mark> mark = legacy.mark();
  for (const auto& work : streams)
    if (work->ordered_with_legacy()) work->wait_for(mark);
  return mark;
}

}  // namespace

namespace {

// What a call of the driver's holds.
struct Context {
  std::mutex mutex;                   // guards the next
  std::set<const void*> has_kernels;  // that are loaded
};
Context& context_of(int ordinal) {
  static auto* const all = new std::array<Context, kGpus>;
  return (*all)[static_cast<std::size_t>(ordinal)];
}
void enter_driver(int ordinal) { const std::lock_guard lock(context_of(ordinal).mutex); }

// Of the kernels that are loaded, a page each.
std::size_t code_bytes(int ordinal) {
  Context& context = context_of(ordinal);
  const std::lock_guard lock(context.mutex);
  return kPage * context.has_kernels.size();
}

}  // namespace

void load(const void* kernel, cudaStream_t stream) {
  constexpr std::chrono::seconds kForEver{30};
  const int ordinal = stream->work->ordinal();
  Context& context = context_of(ordinal);
  const std::lock_guard lock(context.mutex);
  if (!context.has_kernels.insert(kernel).second) return;
  const auto limit = std::chrono::steady_clock::now() + kForEver;
  while (is_busy(ordinal)) {
    if (std::chrono::steady_clock::now() >= limit) {
      std::fprintf(stderr,
                   "emulated CUDA: a kernel is loaded while a stream waits for what needs the driver\n");
      std::abort();
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

bool driver_is_held(int gpu) {
  const std::unique_lock lock(context_of(gpu).mutex, std::try_to_lock);
  return !lock.owns_lock();
}

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
// Whether the driver has a context for this thread: cudaGetDevice names GPU 0 without, and makes none.
thread_local bool has_context = false;
std::atomic<int> waits_for_host{0}, calls_elsewhere{0}, streams_of_priority{0}, pageable_reads{0};
constexpr int kUrgent = -5, kMultiprocessors = 2;
constexpr std::size_t kPlainSharedBytes = 48 * 1024;
constexpr int kMostSharedBytes = 163 * 1024, kStaticSharedBytes = 512;

// A call makes a context on the current GPU, whatever it is about.
bool is_elsewhere(int ordinal) {
  has_context = true;
  const bool elsewhere = current_gpu != ordinal;
  calls_elsewhere += elsewhere ? 1 : 0;
  tessera::emulated_cuda::enter_driver(ordinal);
  return elsewhere;
}

// As what `to` and `from` are has it: what is neither a GPU's nor pinned is read before the call returns, or
// written.
void give_copy(StreamWork& work, void* to, const void* from, std::size_t bytes) {
  if (memory().is_pageable(from)) {
    ++pageable_reads;
    const auto* const begin = static_cast<const std::byte*>(from);
    work.give([to, gpu = work.ordinal(), read = std::vector<std::byte>(begin, begin + bytes)] {
      const Access access(gpu);
      std::memcpy(to, read.data(), read.size());
    });
  } else {
    work.give([to, gpu = work.ordinal(), from, bytes] {
      const Access access(gpu);
      std::memmove(to, from, bytes);
    });
  }
  if (memory().is_pageable(to)) work.mark()->wait();
}

}  // namespace

namespace {
std::mutex counting;
std::map<std::string, int> counted_launches;  // guarded by counting
}  // namespace
void tessera::emulated_cuda::count_launch(const char* op) {
  const std::lock_guard lock(counting);
  ++counted_launches[op];
}
std::map<std::string, int> tessera::emulated_cuda::launches() {
  const std::lock_guard lock(counting);
  return counted_launches;
}
int tessera::emulated_cuda::urgent_streams() { return streams_of_priority.load(); }
int tessera::emulated_cuda::pageable_copies() { return pageable_reads.load(); }
int tessera::emulated_cuda::host_waits() { return waits_for_host.load(); }
int tessera::emulated_cuda::calls_on_another_gpu() { return calls_elsewhere.load(); }

cudaError_t cudaMalloc(void** result, std::size_t bytes) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  void* const begin = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) return cudaErrorMemoryAllocation;
  memory().add(*result = begin, bytes, current_gpu);
  return cudaSuccess;
}

cudaError_t tessera::emulated_cuda::free_at_once(void* begin) {
  const auto range = memory().find(begin);
  if (!range) return cudaErrorInvalidValue;
  memory().remove(begin);
  munmap(begin, range->bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* begin) {
  if (begin == nullptr) return cudaSuccess;
  tessera::emulated_cuda::note_freed(begin);
  if (const auto range = memory().find(begin))
    tessera::emulated_cuda::wait_for_gpu(range->ordinal, "cudaFree");
  return tessera::emulated_cuda::free_at_once(begin);
}

// Aligned as it is promised, and no better.
constexpr std::size_t kHostAlignment = 256;

cudaError_t cudaHostAlloc(void** result, std::size_t bytes, unsigned) {
  void* const page = ::operator new(kHostAlignment + bytes, std::align_val_t(4096));
  *result = static_cast<std::byte*>(page) + kHostAlignment;
  memory().add(*result, bytes, -1);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* begin) {
  tessera::emulated_cuda::wait_for_gpu(current_gpu, "cudaFreeHost");
  memory().remove(begin);
  ::operator delete(static_cast<std::byte*>(begin) - kHostAlignment, std::align_val_t(4096));
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  const auto copy = [to, from, bytes, gpu = current_gpu] {
    const Access access(gpu);
    std::memcpy(to, from, bytes);
  };
  return tessera::emulated_cuda::give_legacy(current_gpu, copy)->wait(), cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (is_elsewhere(stream->work->ordinal())) return cudaErrorInvalidValue;
  return give_copy(*stream->work, to, from, bytes), cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind, cudaStream_t stream) {
  if (width > to_pitch || width > from_pitch || is_elsewhere(stream->work->ordinal()))
    return cudaErrorInvalidValue;
  const auto copy = [=, gpu = stream->work->ordinal()] {
    const Access access(gpu);
    for (std::size_t row = 0; row < height; ++row)
      std::memcpy(static_cast<std::byte*>(to) + row * to_pitch,
                  static_cast<const std::byte*>(from) + row * from_pitch, width);
  };
  return stream->work->give(copy), cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* begin, int value, std::size_t bytes, cudaStream_t stream) {
  const int gpu = stream == cudaStreamLegacy ? current_gpu : stream->work->ordinal();
  tessera::emulated_cuda::count_launch("fill of memory");
  const auto set = [begin, value, bytes, gpu] {
    const Access access(gpu);
    std::memset(begin, value, bytes);
  };
  if (stream == cudaStreamLegacy) return tessera::emulated_cuda::give_legacy(gpu, set), cudaSuccess;
  return stream->work->give(set), cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = std::size_t{1} << 30;
  *free = *total - memory().bytes_of(current_gpu) - tessera::emulated_cuda::code_bytes(current_gpu);
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = kGpus, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {.name = "emulated",
                 .totalGlobalMem = std::size_t{1} << 30,
                 .major = 8,
                 .minor = 0,
                 .multiProcessorCount = kMultiprocessors};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int ordinal) {
  std::snprintf(id, static_cast<std::size_t>(length), "0000:%02x:00.0", static_cast<unsigned>(ordinal));
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? kMostSharedBytes
           : attribute == cudaDevAttrMultiProcessorCount        ? kMultiprocessors
                                                                : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = kUrgent, cudaSuccess;
}
cudaError_t cudaInitDevice(int, unsigned, unsigned) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* ordinal) { return *ordinal = current_gpu, cudaSuccess; }
cudaError_t cudaSetDevice(int ordinal) {
  if (ordinal < 0 || ordinal >= kGpus) return cudaErrorInvalidValue;
  if (!std::exchange(has_context, true)) tessera::emulated_cuda::enter_driver(ordinal);
  return current_gpu = ordinal, cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  has_context = true;
  streams_of_priority += priority == kUrgent ? 1 : 0;
  *stream = new CUstream_st{.work = StreamWork::start(current_gpu, flags == cudaStreamDefault)};
  tessera::emulated_cuda::AllWork& all = tessera::emulated_cuda::all_work();
  const std::lock_guard lock(all.mutex);
  return all.of_streams.push_back((*stream)->work), cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* ordinal) {
  return *ordinal = stream->work->ordinal(), cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  is_elsewhere(stream->work->ordinal());
  stream->work->close();
  return delete stream, cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const auto mark = stream == cudaStreamLegacy ? tessera::emulated_cuda::give_legacy(current_gpu, [] {})
                                               : stream->work->mark();
  return mark->wait(), cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return tessera::emulated_cuda::wait_for_gpu(current_gpu, "cudaDeviceSynchronize"), cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  tessera::emulated_cuda::enter_driver(stream->work->ordinal());
  if (const auto mark = event->last()) stream->work->wait_for(mark);
  return cudaSuccess;
}
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
  if (is_elsewhere(stream->work->ordinal()) || event->ordinal != stream->work->ordinal())
    return cudaErrorInvalidValue;
  {
    const std::lock_guard lock(event->mutex);
    event->mark = stream->work->mark();
  }
  stream->hold_if_asked();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const auto mark = event->last()) mark->wait();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (is_elsewhere(event->ordinal)) return cudaErrorInvalidValue;
  const auto mark = event->last();
  return mark && !mark->reached() ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  for (const cudaEvent_t event : {start, end}) {
    if (!event->timed || !event->last()) return cudaErrorInvalidValue;
    if (const cudaError_t result = cudaEventQuery(event); result != cudaSuccess) return result;
  }
  *ms = std::chrono::duration<float, std::milli>(end->last()->time() - start->last()->time()).count();
  return cudaSuccess;
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
  if (!has_context) return CUDA_ERROR_INVALID_CONTEXT;
  tessera::emulated_cuda::enter_driver(stream->work->ordinal());
  ++waits_for_host;
  stream->work->give([address, value] {
    const auto& word = *reinterpret_cast<const std::atomic<std::uint32_t>*>(address);
    while (static_cast<std::int32_t>(word.load() - value) < 0)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  });
  return CUDA_SUCCESS;
}
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
  if (!has_context) return CUDA_ERROR_INVALID_CONTEXT;
  tessera::emulated_cuda::enter_driver(stream->work->ordinal());
  stream->work->give(
      [address, value] { reinterpret_cast<std::atomic<std::uint32_t>*>(address)->store(value); });
  stream->hold_if_asked();
  return CUDA_SUCCESS;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const std::map<std::string_view, void*> calls = {
      {"cuStreamWaitValue32", reinterpret_cast<void*>(&cuStreamWaitValue32)},
      {"cuStreamWriteValue32", reinterpret_cast<void*>(&cuStreamWriteValue32)}};
  const auto call = calls.find(name);
  *function = call == calls.end() ? nullptr : call->second;
  *found = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t error) {
  constexpr const char* kNames[] = {"cudaSuccess", "cudaErrorInvalidValue", "cudaErrorMemoryAllocation",
                                    "cudaErrorNotReady"};
  return error == cudaErrorDeviceUninitialized ? "cudaErrorDeviceUninitialized" : kNames[error];
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

namespace {

struct SharedBytes {
  std::mutex mutex;
  std::map<const void*, std::size_t> of_kernels;  // that asked
};
SharedBytes& shared_bytes() {
  static auto* const one = new SharedBytes;
  return *one;
}

}  // namespace

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  return *attributes = {kStaticSharedBytes}, cudaSuccess;
}
cudaError_t set_dynamic_shared_bytes(const void* kernel, int bytes) {
  if (bytes > kMostSharedBytes - kStaticSharedBytes) return cudaErrorInvalidValue;
  const std::lock_guard lock(shared_bytes().mutex);
  shared_bytes().of_kernels[kernel] = static_cast<std::size_t>(bytes);
  return cudaSuccess;
}
cudaError_t tessera::emulated_cuda::allow_shared(const void* kernel, std::size_t bytes) {
  if (bytes <= kPlainSharedBytes) return cudaSuccess;
  const std::lock_guard lock(shared_bytes().mutex);
  const auto asked = shared_bytes().of_kernels.find(kernel);
  return asked != shared_bytes().of_kernels.end() && bytes <= asked->second ? cudaSuccess
                                                                            : cudaErrorInvalidValue;
}
