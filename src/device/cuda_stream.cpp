#include "src/device/cuda_stream.h"

#include <fmt/format.h>

#include "src/device/activity.h"
#include "src/device/cpu_stream.h"
#include "src/device/cuda_queues.h"
#include "src/device/time_text.h"
#include "src/device/wait.h"
#include "tessera/error.h"

namespace tessera::device {
namespace {

constexpr std::chrono::microseconds kSleep{20};  // a step is milliseconds, and its end is waited for once

void lower_to(std::atomic<std::uint64_t>& value, std::uint64_t limit) {
  std::uint64_t seen = value.load();
  while (seen > limit && !value.compare_exchange_weak(seen, limit)) {
  }
}

void raise_to(std::atomic<std::uint64_t>& value, std::uint64_t limit) {
  std::uint64_t seen = value.load();
  while (seen < limit && !value.compare_exchange_weak(seen, limit)) {
  }
}

}  // namespace

std::string describe_gpu(const void* settings) {
  const auto& of = *static_cast<const CudaStreamSettings*>(settings);
  return fmt::format("rank {}, GPU {}", of.rank, of.ordinal);
}

CudaStream::CudaStream(const StreamOptions& options, const CudaStreamSettings& settings)
    : options_(options),
      settings_(settings),
      ring_(options.capacity),
      word_(settings.words->make()),
      work_(CudaWork::of(settings.ordinal)) {
  const Activity activity(&describe_gpu, &settings_);
  make_current(settings_.ordinal);
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  // Fills run on the default stream, which orders itself with every stream that does not refuse.
  const unsigned flags = settings_.ordered_with_fills ? cudaStreamDefault : cudaStreamNonBlocking;
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithPriority(&stream, flags, options_.urgent ? greatest : least),
             "cudaStreamCreateWithPriority");
  stream_.reset(stream);
  for (int i = 0; i < options_.capacity; ++i) events_.push_back(make_cuda_event(cudaEventDisableTiming));
  work_->add(stream, settings_.deadline);
}

CudaStream::~CudaStream() {
  try {
    synchronize(record());
  } catch (...) {  // the flag holds it, or it is late
  }
  ignore_cuda(cudaSetDevice(settings_.ordinal));
  work_->remove(stream_.get());
}

template <class Operation>
void CudaStream::perform(const Operation& operation) {
  if (failed_at_.load() != kNever) return;
  const Activity activity(&describe_gpu, &settings_);
  try {
    settings_.failure.rethrow();
    make_current(settings_.ordinal);
    operation();
  } catch (...) {
    fail(recorded_.load() + 1);
    throw;
  }
}

void CudaStream::run(Task task) {
  perform([&] { task.run(task.context, task.argument); });
}

void CudaStream::wait(Event event) {
  if (event.stream == nullptr || event.stream == this) return;
  perform([&] {
    if (const auto* other = dynamic_cast<const CudaStream*>(event.stream))
      return other->precede(stream_.get(), event.ticket);
    const auto* host = dynamic_cast<const ThreadStream*>(event.stream);
    if (host == nullptr || host->word() == nullptr || host->done(event) || !may_wait_for_host())
      return event.stream->synchronize(event);
    settings_.words->enqueue_wait(stream_.get(), *host->word(), static_cast<std::uint32_t>(event.ticket));
  });
}

bool CudaStream::may_wait_for_host() const {
  return settings_.words->streams_wait() && work_->streams() <= hardware_queues(settings_.ordinal).count;
}

void CudaStream::precede(cudaStream_t later, std::uint64_t ticket) const {
  if (failed_at_.load() <= ticket) settings_.failure.rethrow();
  if (completed_.load() >= ticket) return;
  check_cuda(cudaStreamWaitEvent(later, events_[ring_.slot(ticket)].get(), 0), "cudaStreamWaitEvent");
}

Event CudaStream::record() {
  if (failed_at_.load() != kNever) return {this, failed_at_.load()};
  const std::uint64_t ticket = recorded_.load() + 1;
  try {
    const bool captured = captured_from_.load() != kNever;
    // An event of the capture that loses its slot is waited for at a later point, which is as good.
    if (!captured) wait_until(ring_.replaced_by(ticket));
    const Activity activity(&describe_gpu, &settings_);
    make_current(settings_.ordinal);
    check_cuda(cudaEventRecord(events_[ring_.slot(ticket)].get(), stream_.get()), "cudaEventRecord");
    if (settings_.told_to_host->load() && !captured) {
      settings_.words->enqueue_write(stream_.get(), *word_, static_cast<std::uint32_t>(ticket));
      lower_to(told_from_, ticket);
    }
    recorded_.store(ticket);
  } catch (...) {
    fail(ticket);
  }
  return {this, ticket};
}

void CudaStream::begin_capture() { captured_from_.store(recorded_.load() + 1); }

void CudaStream::end_capture() noexcept {
  raise_to(completed_, recorded_.load());
  captured_from_.store(kNever);
}

bool CudaStream::reached(std::uint64_t ticket) const noexcept {
  if (completed_.load() >= ticket || failed_at_.load() <= ticket) return true;
  if (captured_from_.load() <= ticket) return false;
  if (told_from_.load() > ticket) return ask(ticket);
  if (!is_past(word_->load(), static_cast<std::uint32_t>(ticket)))
    return !serves_stream() && ask(ticket);  // a failure has to be asked for
  raise_to(completed_, ticket);
  return true;
}

bool CudaStream::ask(std::uint64_t ticket) const noexcept {
  const Activity activity(&describe_gpu, &settings_);
  try {
    make_current(settings_.ordinal);  // whichever thread asks: else it would make a context on the first GPU
    const cudaError_t result = cudaEventQuery(events_[ring_.slot(ticket)].get());
    if (result == cudaErrorNotReady) {
      ignore_cuda(result);
      return false;
    }
    check_cuda(result, "a kernel or a copy");
    raise_to(completed_, ticket);
  } catch (const Error&) {
    fail(ticket);
  }
  return true;
}

void CudaStream::wait_until(std::uint64_t ticket) const {
  if (captured_from_.load() <= ticket && failed_at_.load() > ticket)
    throw EnvironmentError(
        fmt::format("rank {}: stream '{}' on GPU {} is being captured; nothing is done that "
                    "the host could wait for",
                    settings_.rank, options_.name, settings_.ordinal));
  const Pauses pauses(kSleep);
  Patience patience(settings_.deadline);
  const bool known = completed_.load() >= ticket && failed_at_.load() > ticket;
  while (!reached(ticket) && !settings_.failure.failed()) {
    if (patience.over())
      throw EnvironmentError(fmt::format(
          "rank {}: stream '{}' on GPU {} did not reach event {} within {}; it has reached {} of {}",
          settings_.rank, options_.name, settings_.ordinal, ticket, time_text(settings_.deadline),
          completed_.load(), recorded_.load()));
    pauses.pause();
  }
  // Behind a failure elsewhere, what is only now seen to be reached says nothing: streams go on past threads
  // of the host that failed, and past collectives that were aborted.
  const bool failed_here = failed_at_.load() != kNever;
  if (failed_at_.load() <= ticket || completed_.load() < ticket || (!known && !failed_here))
    settings_.failure.rethrow();
}

void CudaStream::fail(std::uint64_t ticket) const {
  FailureFlag(settings_.failure)
      .set(std::current_exception());  // first: who sees failed_at_ asks the flag for the cause
  lower_to(failed_at_, ticket);
}

}  // namespace tessera::device
