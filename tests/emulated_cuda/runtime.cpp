// The emulated GPU's streams, events and copies.
#include <cuda_runtime.h>

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

#include "tests/emulated_cuda/calls.h"
#include "tests/emulated_cuda/capture.h"
#include "tests/emulated_cuda/emulator.h"
#include "tests/emulated_cuda/memory.h"
#include "tests/emulated_cuda/nccl_memory.h"
#include "tests/emulated_cuda/streams.h"

using tessera::emulated_cuda::Access;
using tessera::emulated_cuda::begin_call;
using tessera::emulated_cuda::begin_unsafe_call;
using tessera::emulated_cuda::calling_thread;
using tessera::emulated_cuda::count_event;
using tessera::emulated_cuda::count_stream;
using tessera::emulated_cuda::end_call;
using tessera::emulated_cuda::fault_of;
using tessera::emulated_cuda::is_elsewhere;
using tessera::emulated_cuda::kGpus;
using tessera::emulated_cuda::kUrgent;
using tessera::emulated_cuda::Mark;
using tessera::emulated_cuda::memory;
using tessera::emulated_cuda::note_context;
using tessera::emulated_cuda::spoils_capture;
using tessera::emulated_cuda::StreamWork;

struct CUevent_st {
  int ordinal = 0;
  bool timed = false;
  std::mutex mutex;                                     // guards the next
  std::shared_ptr<const Mark> mark;                     // where it was recorded last, if it was
  tessera::emulated_cuda::CapturedPlace captured = {};  // of a capture, if it was that
  unsigned unseen = 0;  // times in a row that it was said not to be ready, though it was

  // Of an event that was reached: whether a query does not see it yet.
  bool seems_not_ready() {
    constexpr unsigned kMostUnseen = 2;
    const std::lock_guard lock(mutex);
    unseen = unseen < kMostUnseen && tessera::emulated_cuda::seems_not_ready() ? unseen + 1 : 0;
    return unseen > 0;
  }
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
std::atomic<int> calls_elsewhere{0};

}  // namespace

void enter_driver(int ordinal) { const std::lock_guard lock(context_of(ordinal).mutex); }

int calls_on_another_gpu() { return calls_elsewhere.load(); }

bool is_elsewhere(int ordinal) {
  calling_thread().has_context = true;
  const bool elsewhere = calling_thread().gpu != ordinal;
  calls_elsewhere += elsewhere ? 1 : 0;
  enter_driver(ordinal);
  return elsewhere;
}

bool spoils_capture(const StreamWork& work) {
  if (!work.captured().capture) return false;
  work.captured().capture->valid = false;
  return true;
}

std::size_t code_bytes(int ordinal) {
  Context& context = context_of(ordinal);
  const std::lock_guard lock(context.mutex);
  return kPage * context.has_kernels.size();
}

bool load(const void* kernel, cudaStream_t stream) {
  constexpr std::chrono::seconds kForEver{30};
  const int ordinal = stream->work->ordinal();
  Context& context = context_of(ordinal);
  const std::lock_guard lock(context.mutex);
  if (!context.has_kernels.insert(kernel).second) return true;
  if (stream->work->captured().capture) {
    context.has_kernels.erase(kernel);
    stream->work->captured().capture->valid = false;
    return false;
  }
  const auto limit = std::chrono::steady_clock::now() + kForEver;
  while (is_busy(ordinal)) {
    if (std::chrono::steady_clock::now() >= limit) {
      std::fprintf(stderr,
                   "emulated CUDA: a kernel is loaded while a stream waits for what needs the driver\n");
      std::abort();
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return true;
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

std::atomic<int> streams_of_priority{0}, pageable_reads{0};

// As what `to` and `from` are has it: what is neither a GPU's nor pinned is read before the call returns, or
// written.
void give_copy(StreamWork& work, void* to, const void* from, std::size_t bytes) {
  if (memory().is_pageable(from) && !work.captured().capture) {
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
  if (memory().is_pageable(to) && !work.captured().capture) work.mark()->wait();
}

}  // namespace

int tessera::emulated_cuda::urgent_streams() { return streams_of_priority.load(); }
int tessera::emulated_cuda::pageable_copies() { return pageable_reads.load(); }

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  if (const cudaError_t refused = begin_unsafe_call("cudaMemcpy")) return refused;
  const auto copy = [to, from, bytes, gpu = calling_thread().gpu] {
    const Access access(gpu);
    std::memcpy(to, from, bytes);
  };
  return tessera::emulated_cuda::give_legacy(calling_thread().gpu, copy)->wait(),
         end_call(fault_of(calling_thread().gpu));
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (const cudaError_t refused = begin_call("cudaMemcpyAsync")) return refused;
  if (is_elsewhere(stream->work->ordinal())) return end_call(cudaErrorInvalidValue);
  return give_copy(*stream->work, to, from, bytes), cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind, cudaStream_t stream) {
  if (const cudaError_t refused = begin_call("cudaMemcpy2DAsync")) return refused;
  if (width > to_pitch || width > from_pitch || is_elsewhere(stream->work->ordinal()))
    return end_call(cudaErrorInvalidValue);
  const auto copy = [=, gpu = stream->work->ordinal()] {
    const Access access(gpu);
    for (std::size_t row = 0; row < height; ++row)
      std::memcpy(static_cast<std::byte*>(to) + row * to_pitch,
                  static_cast<const std::byte*>(from) + row * from_pitch, width);
  };
  return stream->work->give(copy), cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* begin, int value, std::size_t bytes, cudaStream_t stream) {
  if (const cudaError_t refused = begin_call("cudaMemsetAsync")) return refused;
  tessera::emulated_cuda::count_launch("fill of memory");
  const int gpu = stream == cudaStreamLegacy ? calling_thread().gpu : stream->work->ordinal();
  const auto set = [begin, value, bytes, gpu] {
    const Access access(gpu);
    std::memset(begin, value, bytes);
  };
  if (stream == cudaStreamLegacy) return tessera::emulated_cuda::give_legacy(gpu, set), cudaSuccess;
  return stream->work->give(set), cudaSuccess;
}
cudaError_t cudaInitDevice(int, unsigned, unsigned) {
  if (const cudaError_t refused = begin_call("cudaInitDevice")) return refused;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* ordinal) {
  if (const cudaError_t refused = begin_call("cudaGetDevice")) return refused;
  return *ordinal = calling_thread().gpu, cudaSuccess;
}
cudaError_t cudaSetDevice(int ordinal) {
  if (const cudaError_t refused = begin_call("cudaSetDevice")) return refused;
  if (ordinal < 0 || ordinal >= kGpus) return end_call(cudaErrorInvalidValue);
  if (!std::exchange(calling_thread().has_context, true)) tessera::emulated_cuda::enter_driver(ordinal);
  note_context(ordinal);
  return calling_thread().gpu = ordinal, cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  if (const cudaError_t refused = begin_call("cudaStreamCreateWithPriority")) return refused;
  calling_thread().has_context = true;
  streams_of_priority += priority == kUrgent ? 1 : 0;
  *stream = new CUstream_st{.work = StreamWork::start(calling_thread().gpu, flags == cudaStreamDefault)};
  tessera::emulated_cuda::AllWork& all = tessera::emulated_cuda::all_work();
  const std::lock_guard lock(all.mutex);
  count_stream(1);
  return all.of_streams.push_back((*stream)->work), cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (const cudaError_t refused = begin_call("cudaStreamDestroy")) return refused;
  is_elsewhere(stream->work->ordinal());
  stream->work->close();
  count_stream(-1);
  return delete stream, cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t refused = begin_unsafe_call("cudaStreamSynchronize")) return refused;
  if (stream != cudaStreamLegacy && spoils_capture(*stream->work))
    return end_call(cudaErrorStreamCaptureUnsupported);
  const auto mark = stream == cudaStreamLegacy
                        ? tessera::emulated_cuda::give_legacy(calling_thread().gpu, [] {})
                        : stream->work->mark();
  mark->wait();
  return end_call(fault_of(calling_thread().gpu));
}
cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t refused = begin_unsafe_call("cudaDeviceSynchronize")) return refused;
  tessera::emulated_cuda::wait_for_gpu(calling_thread().gpu, "cudaDeviceSynchronize");
  return end_call(fault_of(calling_thread().gpu));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const cudaError_t refused = begin_call("cudaStreamWaitEvent")) return refused;
  tessera::emulated_cuda::enter_driver(stream->work->ordinal());
  tessera::emulated_cuda::CapturedPlace place = stream->work->captured();
  if (event->captured.capture) {
    if (!event->captured.capture->valid) return end_call(cudaErrorStreamCaptureInvalidated);
    if (place.capture && place.capture != event->captured.capture) {
      place.capture->valid = event->captured.capture->valid = false;
      return end_call(cudaErrorStreamCaptureMerge);
    }
    if (!place.capture) {
      place.capture = event->captured.capture;
      place.capture->streams.push_back(stream->work.get());
    }
    place.behind.insert(event->captured.behind.begin(), event->captured.behind.end());
    return stream->work->join(std::move(place)), cudaSuccess;
  }
  const auto mark = event->last();
  if (mark && spoils_capture(*stream->work)) return end_call(cudaErrorStreamCaptureIsolation);
  if (mark) stream->work->wait_for(mark);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (const cudaError_t refused = begin_call("cudaEventCreateWithFlags")) return refused;
  count_event(1);
  *event = new CUevent_st;
  (*event)->ordinal = calling_thread().gpu;
  return (*event)->timed = flags == cudaEventDefault, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (const cudaError_t refused = begin_call("cudaEventDestroy")) return refused;
  is_elsewhere(event->ordinal);
  count_event(-1);
  return delete event, cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t refused = begin_call("cudaEventRecord")) return refused;
  if (is_elsewhere(stream->work->ordinal()) || event->ordinal != stream->work->ordinal())
    return end_call(cudaErrorInvalidValue);
  event->captured = stream->work->captured();
  if (event->captured.capture) return cudaSuccess;
  {
    const std::lock_guard lock(event->mutex);
    event->mark = stream->work->mark();
  }
  stream->hold_if_asked();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->captured.capture) return end_call(cudaErrorCapturedEvent);
  if (const cudaError_t refused = begin_unsafe_call("cudaEventSynchronize")) return refused;
  if (const auto mark = event->last()) mark->wait();
  return end_call(fault_of(event->ordinal));
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->captured.capture) return end_call(cudaErrorCapturedEvent);
  if (const cudaError_t refused = begin_unsafe_call("cudaEventQuery")) return refused;
  if (is_elsewhere(event->ordinal)) return end_call(cudaErrorInvalidValue);
  const auto mark = event->last();
  if (mark && (!mark->reached() || event->seems_not_ready())) return end_call(cudaErrorNotReady);
  return end_call(fault_of(event->ordinal));
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  if (const cudaError_t refused = begin_call("cudaEventElapsedTime")) return refused;
  for (const cudaEvent_t event : {start, end}) {
    if (!event->timed || !event->last()) return end_call(cudaErrorInvalidValue);
    if (!event->last()->reached()) return end_call(cudaErrorNotReady);
  }
  *ms = std::chrono::duration<float, std::milli>(end->last()->time() - start->last()->time()).count();
  return cudaSuccess;
}
