#include <fmt/format.h>

#include <utility>

#include "src/device/activity.h"
#include "src/device/cpu_stream.h"
#include "src/device/cuda_graph.h"
#include "src/device/cuda_marks.h"
#include "src/device/cuda_queues.h"
#include "src/device/cuda_stream.h"
#include "src/device/cuda_work.h"
#include "src/device/size_text.h"
#include "src/device/time_text.h"
#include "tessera/error.h"
#include "tessera/id_vector.h"
#include "tessera/machine.h"
#include "tessera/memory_plan.h"
#include "tessera/shape.h"

namespace tessera {
namespace {

using device::Activity;
using device::check_cuda;
using device::ignore_cuda;
using device::make_current;
using device::size_text;

class CudaMemory final : public ArenaMemory {
 public:
  CudaMemory(const CudaDeviceOptions& options, const FailureFlag& failure, std::int64_t bytes, bool of_host,
             const ArenaSource& source)
      : rank_(options.rank), ordinal_(options.ordinal), bytes_(bytes), of_host_(of_host), failure_(failure) {
    make_current(ordinal_);
    if (source) taken_ = source.take(bytes);
    if (taken_ != nullptr)
      source_give_back_ = source.give_back;
    else if (of_host_)
      check_cuda(cudaHostAlloc(&taken_, static_cast<std::size_t>(bytes + kBlockBytes), cudaHostAllocDefault),
                 "cudaHostAlloc");
    else
      check_cuda(cudaMalloc(&taken_, static_cast<std::size_t>(bytes)), "cudaMalloc");
    base_ = static_cast<std::byte*>(taken_);
    // Of small memory of the host the runtime aligns 256 bytes; files are read into it in whole blocks.
    if (of_host_)
      base_ += round_up(reinterpret_cast<std::intptr_t>(taken_), kBlockBytes) -
               reinterpret_cast<std::intptr_t>(taken_);
    try {
      fill(0, bytes, 0);
      check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "cudaStreamSynchronize");
    } catch (...) {
      give_back();
      throw;
    }
  }
  ~CudaMemory() override { give_back(); }

  std::byte* base() const override { return base_; }
  void fill(std::int64_t offset, std::int64_t bytes, int value) override {
    make_current(ordinal_);
    check_cuda(cudaMemsetAsync(base() + offset, value, static_cast<std::size_t>(bytes), cudaStreamLegacy),
               "cudaMemsetAsync");
  }

 private:
  void give_back() noexcept {
    ignore_cuda(cudaSetDevice(ordinal_));
    if (!work_->wait()) return leave();
    if (source_give_back_) return source_give_back_(taken_);
    ignore_cuda(of_host_ ? cudaFreeHost(taken_) : cudaFree(taken_));
  }
  // The GPU may still write there, and to give the memory back would wait for it, for good where it hangs.
  void leave() noexcept try {
    failure_.set(fmt::format(
        "rank {}, GPU {}: the GPU has not ended its work within {}; {} of {} bytes ({}) is left to it", rank_,
        ordinal_, device::time_text(work_->deadline()), of_host_ ? "a pinned arena of the host" : "an arena",
        bytes_, size_text(bytes_)));
  } catch (const std::exception&) {  // no memory for the message
  }

  const int rank_, ordinal_;
  const std::int64_t bytes_;
  const bool of_host_;
  FailureFlag failure_;
  const std::shared_ptr<device::CudaWork> work_ = device::CudaWork::of(ordinal_);
  std::function<void(void*)> source_give_back_;  // of what was taken; none: the runtime's
  void* taken_ = nullptr;
  std::byte* base_ = nullptr;
};

// The arena that is being taken, for the message of a refusal.
struct Request {
  const CudaDeviceOptions& options;
  std::int64_t bytes = 0;
  bool of_host = false;
};

std::string describe(const void* context) {
  const auto& request = *static_cast<const Request*>(context);
  std::string text = fmt::format(
      "rank {}, GPU {}: cannot take {} of {} bytes ({})", request.options.rank, request.options.ordinal,
      request.of_host ? "a pinned arena of the host" : "an arena", request.bytes, size_text(request.bytes));
  std::size_t free = 0, total = 0;
  if (!request.of_host && cudaMemGetInfo(&free, &total) == cudaSuccess)
    text += fmt::format(", {} of {} are free", size_text(static_cast<std::int64_t>(free)),
                        size_text(static_cast<std::int64_t>(total)));
  return text;
}

class CudaDevice final : public Device {
 public:
  CudaDevice(const CudaDeviceOptions& options, const std::string& gpu)
      : options_(options), name_(fmt::format("cuda:{} ({})", options.ordinal, gpu)) {
    settings_.rank = options.rank;
    settings_.ordinal = options.ordinal;
    settings_.ordered_with_fills = options.fill_poisoned;
    settings_.deadline = options.deadline;
    check_cuda(cudaInitDevice(options.ordinal, 0, 0), "cudaInitDevice");
    settings_.words = device::HostWords::of(options.ordinal, options.deadline);
  }

  DeviceType type() const override { return DeviceType::cuda; }
  std::string name() const override { return name_; }

  Arena make_arena(std::int64_t bytes, bool, const ArenaSource& source, std::int64_t) override {
    return take(bytes, false, source);
  }
  Arena make_host_arena(std::int64_t bytes) override { return take(bytes, true, {}); }

  std::unique_ptr<Stream> make_stream(const StreamOptions& options) override {
    if (options.capacity < 1)
      throw UsageError(
          fmt::format("stream '{}' with capacity {}: use at least 1", options.name, options.capacity));
    if (!options.cpus.empty())
      throw UsageError(fmt::format("stream '{}' of a GPU has no thread for cpus", options.name));
    return std::make_unique<device::CudaStream>(options, settings_);
  }
  std::unique_ptr<Stream> make_host_stream(const StreamOptions& options) override {
    settings_.told_to_host->store(true);
    return device::make_cpu_stream(options, {.rank = options_.rank,
                                             .policy = device::WaitPolicy::choose(Waiting::automatic, 0),
                                             .deadline = options_.deadline,
                                             .failure = settings_.failure,
                                             .word = settings_.words->make()});
  }
  std::unique_ptr<Marks> make_marks(std::size_t slots) override {
    return std::make_unique<device::CudaMarks>(slots, settings_);
  }

  std::vector<std::string> notices() const override {
    std::vector<std::string> all;
    const bool waits = settings_.words->streams_wait();
    if (!waits)
      all.push_back(fmt::format("GPU {}: {}; {}", options_.ordinal, device::HostWords::kInTheirPlace,
                                settings_.words->why_not()));
    std::string shared = device::shared_queues(options_.ordinal, work_->streams());
    if (shared.empty()) return all;
    if (waits && settings_.told_to_host->load())
      shared += "; till then the calling thread waits for threads of the host in place of streams";
    all.push_back(std::move(shared));
    return all;
  }
  FailureFlag failure() const override { return settings_.failure; }
  ByteCounters& counters() override { return counters_; }

  void copy(Stream& stream, void* to, const void* from, std::int64_t bytes) override {
    make_current(options_.ordinal);
    check_cuda(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault,
                               static_cast<cudaStream_t>(stream.native())),
               "cudaMemcpyAsync");
  }
  void fill(Stream& stream, void* to, int value, std::int64_t bytes) override {
    make_current(options_.ordinal);
    check_cuda(cudaMemsetAsync(to, value, static_cast<std::size_t>(bytes),
                               static_cast<cudaStream_t>(stream.native())),
               "cudaMemsetAsync");
  }

  void begin_capture(std::span<Stream* const> streams) override {
    if (capture_) throw UsageError("begin_capture: a capture is going on; end it first");
    capture_ = std::make_unique<device::CudaCapture>(streams, settings_);
  }
  std::unique_ptr<CapturedWork> end_capture() override {
    if (!capture_) throw UsageError("end_capture: no capture is going on; begin one first");
    return std::exchange(capture_, nullptr)->end();
  }
  void drop_capture() noexcept override { capture_.reset(); }

 private:
  Arena take(std::int64_t bytes, bool of_host, const ArenaSource& source) {
    if (bytes < 0) throw UsageError(fmt::format("an arena of {} bytes: use 0 or more", bytes));
    if (bytes == 0) return {};
    const Request request{options_, bytes, of_host};
    const Activity activity(&describe, &request);
    // A fill runs on the GPU: memory of the host would be filled behind what threads of the host have put
    // there since.
    return {std::make_unique<CudaMemory>(options_, settings_.failure, bytes, of_host, source), bytes,
            options_.fill_poisoned && !of_host};
  }

  CudaDeviceOptions options_;
  std::string name_;
  device::CudaStreamSettings settings_;
  const std::shared_ptr<device::CudaWork> work_ = device::CudaWork::of(options_.ordinal);
  ByteCounters counters_;
  std::unique_ptr<device::CudaCapture> capture_;
};

}  // namespace

std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options) {
  if (options.rank < 0) throw UsageError(fmt::format("device of rank {}: use 0 or more", options.rank));
  const CudaMachine machine = read_cuda_machine();
  if (!machine.unusable.empty())
    throw EnvironmentError(fmt::format("rank {}: no GPU can be used: {}", options.rank, machine.unusable));
  const IdSpan<const CudaGpu> gpus = machine.gpus;
  if (options.ordinal < 0 || options.ordinal >= gpus.count())
    throw EnvironmentError(fmt::format("rank {}: GPU {}: this process sees {}; use 0 to {}", options.rank,
                                       options.ordinal, gpus.count(), gpus.count() - 1));
  return std::make_unique<CudaDevice>(options, gpus[options.ordinal].name);
}

}  // namespace tessera
