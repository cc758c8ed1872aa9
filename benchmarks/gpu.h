// A GPU's kernels in times between device events, each in turn with its limit.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "benchmarks/pairs.h"
#include "kernels/context.h"
#include "tessera/device.h"
#include "tessera/dtype.h"
#include "tessera/error.h"

namespace tessera {

constexpr int kRepeats = 4;  // calls between two events: what starting the first takes is shared out
constexpr std::int64_t kPatternBytes = 1 << 20;

inline void check_cuda(cudaError_t result, const char* call) {
  if (result != cudaSuccess)
    throw EnvironmentError(std::string(call) + " failed: " + cudaGetErrorString(result));
}

// A GPU, its stream and two events on it.
class Gpu {
 public:
  Gpu() : device_(make_cuda_device({})), stream_(device_->make_stream({.name = "benchmark"})) {
    for (cudaEvent_t* event : {&begin_, &end_})
      check_cuda(cudaEventCreateWithFlags(event, cudaEventDefault), "cudaEventCreateWithFlags");
  }
  ~Gpu() {
    for (cudaEvent_t event : {begin_, end_}) cudaEventDestroy(event);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  Device& device() const { return *device_; }
  Stream& stream() const { return *stream_; }

  // Of one call of `enqueue`.
  double seconds_of(const std::function<void()>& enqueue) const {
    const auto native = static_cast<cudaStream_t>(stream_->native());
    check_cuda(cudaEventRecord(begin_, native), "cudaEventRecord");
    for (int i = 0; i < kRepeats; ++i) enqueue();
    check_cuda(cudaEventRecord(end_, native), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return milliseconds * 1e-3 / kRepeats;
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// The tensors of one measurement.
class Tensors {
 public:
  explicit Tensors(const Gpu& gpu) : gpu_(gpu) {}

  void* take(std::int64_t bytes) {
    arenas_.push_back(gpu_.device().make_arena(std::max<std::int64_t>(bytes, 1)));
    return arenas_.back().base();
  }
  // Elements from 0.5 to 2, of either type.
  void* take_filled(std::int64_t numel, DType type) {
    const std::int64_t bytes = numel * bytes_of(type);
    auto* const tensor = static_cast<std::byte*>(take(bytes));
    for (std::int64_t at = 0; at < bytes; at += kPatternBytes)
      gpu_.device().copy(gpu_.stream(), tensor + at, pattern().data(), std::min(kPatternBytes, bytes - at));
    gpu_.stream().synchronize();
    return tensor;
  }
  std::int32_t* take_targets(std::int64_t rows, std::int64_t vocabulary) {
    std::vector<std::int32_t> targets(static_cast<std::size_t>(rows));
    for (std::size_t i = 0; i < targets.size(); ++i)
      targets[i] = static_cast<std::int32_t>(i * 7919 % static_cast<std::size_t>(vocabulary));
    void* const tensor = take(rows * 4);
    gpu_.device().copy(gpu_.stream(), tensor, targets.data(), rows * 4);
    gpu_.stream().synchronize();
    return static_cast<std::int32_t*>(tensor);
  }
  float* floats(std::int64_t numel) { return static_cast<float*>(take(numel * 4)); }

  kernels::ComputeContext context(std::int64_t workspace_bytes = 0) {
    return {.workspace = {.data = take(workspace_bytes), .bytes = workspace_bytes},
            .device = DeviceType::cuda,
            .stream = gpu_.stream().native()};
  }

 private:
  static const std::vector<std::uint32_t>& pattern() {
    static const std::vector<std::uint32_t> words = [] {
      std::mt19937 random;
      std::vector<std::uint32_t> made(kPatternBytes / 4);
      for (std::uint32_t& word : made) word = 0x3f003f00u | (random() & 0x00ff00ffu);
      return made;
    }();
    return words;
  }

  const Gpu& gpu_;
  std::vector<Arena> arenas_;
};

// What is measured: seconds of the limit and of the kernel, for the same work.
struct Measurement {
  double expected = 0;  // of the limit's speed; 0: nothing is
  double work = 0;      // 1e9 bytes or 1e12 operations
  const char* unit = "GB/s";
  std::function<double()> limit, kernel;
};

// What fails is this benchmark alone.
inline void run(benchmark::State& state, const std::function<Measurement(const Gpu&, Tensors&)>& make) try {
  const Gpu gpu;
  Tensors tensors(gpu);
  const Measurement measurement = make(gpu, tensors);
  Pairs pairs({"limit", "kernel"});
  measurement.limit();
  measurement.kernel();
  for (auto round : state) {
    pairs.add(0, measurement.limit());
    const double seconds = measurement.kernel();
    pairs.add(1, seconds);
    state.SetIterationTime(seconds);
  }
  pairs.report(state, measurement.work, measurement.unit);
  if (measurement.expected > 0) state.counters["expected"] = measurement.expected;
} catch (const Error& error) {
  state.SkipWithError(error.what());
}

}  // namespace tessera
