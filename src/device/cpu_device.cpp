#include <fmt/format.h>

#include <cstring>

#include "src/device/clock_marks.h"
#include "src/device/cpu_stream.h"
#include "tessera/error.h"
#include "tessera/memory_plan.h"

namespace tessera {
namespace {

// Bases of ranks that lie alike within a page alias in the caches; this many bytes a rank keep them apart.
constexpr std::int64_t kStaggerBytes = 21 * 256;
constexpr int kStaggers = 128;

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options) : options_(options) {
    settings_ = {.rank = options.rank,
                 .policy = device::WaitPolicy::choose(options.waiting, options.busy_threads),
                 .deadline = options.deadline,
                 .failure = {}};
  }

  DeviceType type() const override { return DeviceType::cpu; }
  std::string name() const override { return "cpu"; }

  Arena make_arena(std::int64_t bytes, bool shared, const ArenaSource&,
                   std::int64_t address_space_before) override {
    return Arena({.bytes = bytes,
                  .stagger_bytes = kStaggerBytes * (options_.rank % kStaggers),
                  .fill_poisoned = options_.fill_poisoned,
                  .shared = shared,
                  .address_space_before = address_space_before});
  }

  // In whole blocks from its base, so that files can be read into it directly.
  Arena make_host_arena(std::int64_t bytes) override {
    return Arena({.bytes = bytes,
                  .stagger_bytes = kBlockBytes * (options_.rank % kStaggers),
                  .fill_poisoned = options_.fill_poisoned});
  }

  std::unique_ptr<Stream> make_stream(const StreamOptions& options) override {
    return device::make_cpu_stream(options, settings_);
  }
  std::unique_ptr<Stream> make_host_stream(const StreamOptions& options) override {
    return make_stream(options);
  }
  std::unique_ptr<Marks> make_marks(std::size_t slots) override {
    return std::make_unique<device::ClockMarks>(slots);
  }

  FailureFlag failure() const override { return settings_.failure; }
  ByteCounters& counters() override { return counters_; }

  void copy(Stream&, void* to, const void* from, std::int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  void fill(Stream&, void* to, int value, std::int64_t bytes) override {
    if (bytes > 0) std::memset(to, value, static_cast<std::size_t>(bytes));
  }

 private:
  CpuDeviceOptions options_;
  device::StreamSettings settings_;
  ByteCounters counters_;
};

}  // namespace

void Device::begin_capture(std::span<Stream* const>) {
  throw UnsupportedError("begin_capture: the CPU does its work at once; only a GPU's work can be captured");
}
std::unique_ptr<CapturedWork> Device::end_capture() {
  throw UsageError("end_capture: no capture is going on; begin one first");
}

std::unique_ptr<Device> make_device(DeviceType type, const DeviceOptions& options) {
  if (type == DeviceType::cuda)
    return make_cuda_device({.rank = options.rank,
                             .ordinal = options.ordinal,
                             .deadline = options.deadline,
                             .fill_poisoned = options.fill_poisoned});
  return make_cpu_device({.rank = options.rank,
                          .waiting = options.waiting,
                          .busy_threads = options.busy_threads,
                          .deadline = options.deadline,
                          .fill_poisoned = options.fill_poisoned});
}

std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options) {
  if (options.rank < 0) throw UsageError(fmt::format("device of rank {}: use 0 or more", options.rank));
  return std::make_unique<CpuDevice>(options);
}

}  // namespace tessera
