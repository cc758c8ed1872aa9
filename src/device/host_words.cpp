#include "src/device/host_words.h"

#include <cuda.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <new>
#include <thread>
#include <utility>

#include "src/device/cuda_driver.h"
#include "src/device/cuda_handles.h"
#include "src/device/cuda_work.h"
#include "src/device/time_text.h"
#include "src/device/wait.h"
#include "tessera/error.h"

namespace tessera::device {
namespace {

using Word = HostWords::Word;
static_assert(sizeof(Word) == 4 && Word::is_always_lock_free, "a GPU reads it");

constexpr std::chrono::seconds kMostForAnAnswer{2};
constexpr std::chrono::milliseconds kHolds{20};  // a wait that does, also on a busy host

void check_driver(CUresult result, const char* call) {
  check_cuda(static_cast<cudaError_t>(result), call);  // the numbers are the runtime's
}

bool comes(const Word& word, std::uint32_t value, std::chrono::nanoseconds deadline) {
  for (Patience patience(deadline); word.load() != value;) {
    if (patience.over()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return true;
}

// What a host function writes.
struct Write {
  Word& word;
  std::uint32_t value;
  static void run(void* self) {
    const std::unique_ptr<const Write> write(static_cast<const Write*>(self));
    write->word.store(write->value);
  }
};

// A stream for the trial. Of one that is stuck the work counts on, so that nobody waits for it for good.
class Trial {
 public:
  Trial(int ordinal, std::chrono::nanoseconds deadline) : work_(CudaWork::of(ordinal)) {
    make_current(ordinal);
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0),
               "cudaStreamCreateWithPriority");
    stream_.reset(stream);
    work_->add(stream, deadline);
  }
  ~Trial() { work_->remove(stream_.get()); }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
  cudaStream_t stream() const { return stream_.get(); }

 private:
  const std::shared_ptr<CudaWork> work_;
  CudaStreamHandle stream_;
};

}  // namespace

HostWords::Calls HostWords::find_calls() {
  Calls calls;
  for (const auto& [name, place] :
       {std::pair{"cuStreamWaitValue32", &calls.wait}, {"cuStreamWriteValue32", &calls.write}})
    if (*place = find_driver_call(name); *place == nullptr)
      calls.missing = fmt::format("the NVIDIA driver has no {}", name);
  return calls;
}

std::shared_ptr<HostWords> HostWords::of(int ordinal, std::chrono::nanoseconds deadline) {
  struct Known {
    std::mutex mutex;  // held while they are tried
    std::weak_ptr<HostWords> words;
  };
  static auto* const mutex = new std::mutex;  // never destroyed, as in cuda_work.cpp
  static auto* const all = new std::map<int, Known>;
  Known* known = nullptr;
  {
    const std::lock_guard lock(*mutex);
    known = &(*all)[ordinal];
  }
  const std::lock_guard lock(known->mutex);
  std::shared_ptr<HostWords> words = known->words.lock();
  if (words) return words;
  words = std::make_shared<HostWords>(ordinal, find_calls());
  if (words->streams_wait())
    words->calls_.missing = words->fault(std::min<std::chrono::nanoseconds>(deadline, kMostForAnAnswer));
  known->words = words;
  return words;
}

std::string HostWords::fault(std::chrono::nanoseconds deadline) try {
  const Trial trial(ordinal_, deadline);
  const std::shared_ptr<Word> gpu = make(), host = make();
  const struct Release {  // also where a call fails: else the stream would wait for good
    Word& word;
    ~Release() { word.store(1); }
  } release{*host};
  enqueue_write(trial.stream(), *gpu, 1);
  if (!comes(*gpu, 1, deadline))
    return fmt::format("a cuStreamWriteValue32 did not arrive within {}", time_text(deadline));
  enqueue_wait(trial.stream(), *host, 1);
  enqueue_write(trial.stream(), *gpu, 2);
  if (comes(*gpu, 2, kHolds)) return "a cuStreamWaitValue32 did not wait";
  host->store(1);
  if (!comes(*gpu, 2, deadline))
    return fmt::format("a cuStreamWaitValue32 did not end within {}", time_text(deadline));
  return {};
} catch (const EnvironmentError& error) {
  return error.what();
}

std::shared_ptr<Word> HostWords::make() {
  const std::lock_guard lock(mutex_);
  if (!lines_ || made_ == kWords) {
    make_current(ordinal_);
    void* memory = nullptr;
    check_cuda(cudaHostAlloc(&memory, kWords * sizeof(Line), cudaHostAllocDefault), "cudaHostAlloc");
    lines_ = {new (memory) Line[kWords], [ordinal = ordinal_, work = CudaWork::of(ordinal_)](Line* lines) {
                ignore_cuda(cudaSetDevice(ordinal));
                if (work->wait()) ignore_cuda(cudaFreeHost(lines));  // else the GPU may still write there
              }};
    made_ = 0;
  }
  return {lines_, &lines_[static_cast<std::ptrdiff_t>(made_++)].word};
}

void HostWords::enqueue_wait(cudaStream_t stream, const Word& word, std::uint32_t value) const {
  const auto wait_value = reinterpret_cast<decltype(&cuStreamWaitValue32)>(calls_.wait);
  check_driver(wait_value(stream, reinterpret_cast<CUdeviceptr>(&word), value, CU_STREAM_WAIT_VALUE_GEQ),
               "cuStreamWaitValue32");
}

void HostWords::enqueue_write(cudaStream_t stream, Word& word, std::uint32_t value) const {
  if (streams_wait()) {
    const auto write_value = reinterpret_cast<decltype(&cuStreamWriteValue32)>(calls_.write);
    return check_driver(
        write_value(stream, reinterpret_cast<CUdeviceptr>(&word), value, CU_STREAM_WRITE_VALUE_DEFAULT),
        "cuStreamWriteValue32");
  }
  std::unique_ptr<Write> write(new Write{word, value});
  check_cuda(cudaLaunchHostFunc(stream, &Write::run, write.get()), "cudaLaunchHostFunc");
  static_cast<void>(write.release());  // the function's
}

}  // namespace tessera::device
