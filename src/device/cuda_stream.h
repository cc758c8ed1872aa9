// A GPU's stream. Tasks run at once on the caller and enqueue work; events are points in the stream's order.
// Each ticket has an event of the runtime, from a ring that is made up front.
#pragma once

#include <atomic>
#include <limits>
#include <memory>
#include <vector>

#include "src/device/cuda_handles.h"
#include "src/device/cuda_work.h"
#include "src/device/host_words.h"
#include "src/device/ticket_ring.h"
#include "tessera/device.h"

namespace tessera::device {

// The settings that all streams of one GPU's device share.
struct CudaStreamSettings {
  int rank = 0;
  int ordinal = 0;
  bool ordered_with_fills = false;  // see CudaDeviceOptions::fill_poisoned
  std::chrono::nanoseconds deadline{};
  FailureFlag failure;
  std::shared_ptr<HostWords> words = {};  // never null in a stream
  // Whether host threads may wait for events. Streams then write their progress to a word.
  std::shared_ptr<std::atomic<bool>> told_to_host = std::make_shared<std::atomic<bool>>(false);
};
// Names the rank and its GPU, for an Activity (activity.h) whose context is CudaStreamSettings.
std::string describe_gpu(const void* settings);

class CudaStream final : public Stream {
 public:
  CudaStream(const StreamOptions& options, const CudaStreamSettings& settings);
  // Waits for the enqueued work, within the deadline. Does not wait if the device failed, because the work
  // may then never end.
  ~CudaStream() override;

  const std::string& name() const override { return options_.name; }
  void run(Task task) override;
  void wait(Event event) override;
  // If recording fails, the stream fails. A wait for the event then throws.
  Event record() override;
  void synchronize(Event event) override { wait_until(event.ticket); }
  bool done(Event event) const noexcept override { return reached(event.ticket); }
  void* native() const noexcept override { return stream_.get(); }
  int ordinal() const noexcept { return settings_.ordinal; }

  // From here to end_capture() events are points of what is captured. The host does not wait for them, and
  // other streams that are captured with this one may.
  void begin_capture();
  void end_capture() noexcept;

 private:
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

  template <class Operation>
  void perform(const Operation& operation);
  bool reached(std::uint64_t ticket) const noexcept;
  bool ask(std::uint64_t ticket) const noexcept;  // asks the driver whether it is reached
  // Whether it may wait for a word of the host's. Where streams share hardware queues it could hold up what
  // the word is written behind.
  bool may_wait_for_host() const;
  void wait_until(std::uint64_t ticket) const;
  void precede(cudaStream_t later, std::uint64_t ticket) const;
  // Called while handling the exception that failed the stream at `ticket`.
  void fail(std::uint64_t ticket) const;

  const StreamOptions options_;
  const CudaStreamSettings settings_;
  const TicketRing ring_;
  // The last ticket that is done, modulo 2^32. It is written from ticket told_from_ on.
  const std::shared_ptr<std::atomic<std::uint32_t>> word_;
  std::atomic<std::uint64_t> told_from_{kNever};
  const std::shared_ptr<CudaWork> work_;
  CudaStreamHandle stream_;
  std::vector<CudaEvent> events_;
  std::atomic<std::uint64_t> recorded_{0};
  std::atomic<std::uint64_t> captured_from_{
      kNever};  // the first ticket of what is captured; kNever: nothing is
  // Updated by asking the driver, which any thread may do.
  mutable std::atomic<std::uint64_t> completed_{0};
  mutable std::atomic<std::uint64_t> failed_at_{kNever};
};

}  // namespace tessera::device
