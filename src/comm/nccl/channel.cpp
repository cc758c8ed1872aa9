#include "src/comm/nccl/channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cuda/advance_word.h"
#include "src/comm/nccl/world.h"
#include "src/device/activity.h"
#include "src/device/cuda_check.h"
#include "src/device/time_text.h"

namespace tessera::comm {
namespace {

using device::check_cuda;
using device::Clock;
using device::ignore_cuda;
using std::chrono::nanoseconds;

constexpr std::size_t kMostInFlight = 256;  // calls; another waits for the oldest
constexpr std::chrono::microseconds kSleep{50}, kAskPeersEach{2000};

// Calls done() until it is true or `deadline` has passed: then false. `ask` is called now and then, and may
// throw.
template <class Done, class Ask>
bool wait_for(nanoseconds deadline, const Done& done, const Ask& ask) {
  Clock::time_point asked = Clock::now();
  const device::Pauses pauses(kSleep);
  device::Patience patience(deadline);
  while (!done()) {
    const Clock::time_point now = Clock::now();
    if (patience.over()) return false;
    if (now - asked >= kAskPeersEach) {
      ask();
      asked = now;
    }
    pauses.pause();
  }
  return true;
}

}  // namespace

void check_nccl(ncclResult_t result, const char* call, ncclComm_t communicator) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  std::string message = fmt::format("{} failed: {}", call, nccl().ncclGetErrorString(result));
  const char* const words = nccl().ncclGetLastError(communicator);
  if (words != nullptr && *words != '\0') message += fmt::format(" ({})", words);
  if (const std::string activity = device::Activity::current(); !activity.empty())
    message = activity + ": " + message;
  throw EnvironmentError(message);
}

bool is_done(ncclComm_t communicator, const char* call) {
  ncclResult_t state = ncclSuccess;
  check_nccl(nccl().ncclCommGetAsyncError(communicator, &state), "ncclCommGetAsyncError", communicator);
  check_nccl(state, call, communicator);
  return state == ncclSuccess;
}

NcclChannel::GroupEnd::~GroupEnd() noexcept(false) {
  const ncclResult_t result = nccl().ncclGroupEnd();
  if (std::uncaught_exceptions() == exceptions) check_nccl(result, "ncclGroupEnd", communicator);
}

NcclChannel::NcclChannel(NcclWorld& world, std::shared_ptr<Backend> host, const Options& options)
    : world_(world),
      host_(std::move(host)),
      options_(options),
      words_(device::HostWords::of(options.ordinal, options.deadline)),
      deadline_(options.deadline) {
  device::make_current(options_.ordinal);
  try {
    take_staging();
    flights_.resize(kMostInFlight);
    for (auto* word : {&begun_, &landed_, &spare_}) *word = words_->make();
    last_ = device::make_cuda_event(cudaEventDisableTiming);
    connect();
    kernels::cuda::advance_word(on_stream(), *spare_);
  } catch (...) {
    give_back(world_.forget(*this, false));
    throw;
  }
  world_.watch(*this);
}

// NCCL's own kind of memory where it can be had, like the arena.
void NcclChannel::take_staging() {
  const auto bytes = static_cast<std::size_t>(options_.staging_bytes);
  staging_of_nccl_ = nccl().ncclMemAlloc(&staging_, bytes) == ncclSuccess;
  if (!staging_of_nccl_) {
    ignore_cuda(cudaGetLastError());
    check_cuda(cudaMalloc(&staging_, bytes), "cudaMalloc");
  }
}

template <class Done>
void NcclChannel::settle(const Done& done) {
  if (!wait_for(deadline(), done, [this] { host_->rethrow_failure(text(current_)); })) report_late(current_);
}

void NcclChannel::connect() {
  const auto describe = [](const void* context) {
    const auto& channel = *static_cast<const NcclChannel*>(context);
    return fmt::format("rank {}, GPU {}", channel.host_->global_rank(), channel.options_.ordinal);
  };
  const device::Activity activity(describe, this);
  current_.call = Call::make(Operation::barrier, 0, {"set-up", "connecting GPUs"});
  std::vector<int> ranks = options_.members;
  std::ranges::sort(ranks);
  NcclParent& parent = world_.parent(ranks);
  try {
    if (!parent.made()) {
      ncclUniqueId id{};
      if (host_->rank() == 0) check_nccl(nccl().ncclGetUniqueId(&id), "ncclGetUniqueId");
      host_->broadcast(&id, sizeof id, 0, {"set-up", "connecting GPUs"});
      const auto place = std::ranges::find(ranks, host_->global_rank());
      parent.make(id, host_->world(), static_cast<int>(place - ranks.begin()));
      settle([&] { return parent.ready(); });
    }
    parent.split(host_->rank());
    settle([&] { return parent.ready(); });
  } catch (...) {
    world_.drop(parent);
    throw;
  }
  {
    const std::lock_guard lock(mutex_);
    communicator_ = parent.take_child();
  }
  settle();
}

NcclChannel::~NcclChannel() {
  device::ignore_cuda(cudaSetDevice(options_.ordinal));
  const bool drained = landed([this] { host_->rethrow_failure({}); });
  if (drained) end_registrations();
  give_back(world_.forget(*this, drained));
}

void NcclChannel::give_back(bool ended) noexcept {
  if (staging_ == nullptr) return;
  if (ended)
    world_.give_back({.memory = staging_, .bytes = options_.staging_bytes, .of_nccl = staging_of_nccl_});
  else
    world_.leave(options_.staging_bytes, "NCCL has not ended a communicator", deadline());
}

template <class Ask>
bool NcclChannel::landed(const Ask& ask) noexcept try {
  // A GPU that failed writes no ticket, but its stream reports the failure. A replayed call has no event
  // here.
  const auto done = [this] {
    const cudaError_t result = ask_gpu();
    return result != cudaErrorNotReady &&
           (result != cudaSuccess || device::is_past(landed_->load(), ticket_));
  };
  ask();
  return wait_for(deadline(), done, ask);
} catch (const std::exception&) {
  return false;
}

std::chrono::nanoseconds NcclChannel::deadline() const {
  const std::lock_guard lock(mutex_);
  return deadline_;
}

void NcclChannel::set_deadline(nanoseconds deadline) {
  const std::lock_guard lock(mutex_);
  deadline_ = deadline;
}

// ---- calls ----

void NcclChannel::begin(const NcclCall& call) {
  device::make_current(options_.ordinal);
  current_ = call;
  if (captured_ != nullptr) {
    {
      const std::lock_guard lock(mutex_);
      check_alive();
    }
    captured_->push_back(call);
    return kernels::cuda::advance_word(on_stream(), *begun_);
  }
  Flight* next = nullptr;
  NcclCall oldest;
  const auto room = [&] {
    const std::lock_guard lock(mutex_);
    check_alive();
    if (in_flight_ == flights_.size()) forget_landed();
    if (in_flight_ == flights_.size()) return oldest = flight(0).call, false;
    next = &flight(in_flight_);
    return true;
  };
  const auto hear = [&] {
    host_->rethrow_failure(text(call));
    if (const cudaError_t result = ask_gpu(); result != cudaErrorNotReady)
      check_cuda(result, "a kernel or a copy");
  };
  if (!wait_for(deadline(), room, hear)) report_late(oldest);
  // However many land meanwhile, it is this one, and the watch does not look at it before end().
  next->call = call;
  next->ticket = ++ticket_;
  next->left.reset();
  words_->enqueue_write(options_.stream, *begun_, ticket_);
}

NcclChannel::Issue::~Issue() noexcept(false) {
  try {
    channel.end();
  } catch (const std::exception&) {
    if (std::uncaught_exceptions() == exceptions) throw;  // else another is on its way
  }
}

kernels::ComputeContext NcclChannel::on_stream() const {
  return {.workspace = {}, .device = DeviceType::cuda, .stream = options_.stream};
}

void NcclChannel::end() {
  if (captured_ != nullptr) return kernels::cuda::advance_word(on_stream(), *landed_);
  words_->enqueue_write(options_.stream, *landed_, ticket_);
  check_cuda(cudaEventRecord(last_.get(), options_.stream), "cudaEventRecord");
  const std::lock_guard lock(mutex_);
  ++in_flight_;
}

void NcclChannel::begin_capture(std::vector<NcclCall>& calls) { captured_ = &calls; }

void NcclChannel::end_capture() {
  const std::size_t calls = std::exchange(captured_, nullptr)->size();
  const std::lock_guard lock(mutex_);
  forget_landed();
  make_room(calls);
}

void NcclChannel::replay(std::span<const NcclCall> calls) {
  device::make_current(options_.ordinal);
  const std::lock_guard lock(mutex_);
  check_alive();
  forget_landed();
  make_room(calls.size());
  for (const NcclCall& call : calls) {
    Flight& next = flight(in_flight_++);
    next = {.call = call, .ticket = ++ticket_, .left = std::nullopt};
  }
}

cudaError_t NcclChannel::ask_gpu() const {
  const cudaError_t result = cudaEventQuery(last_.get());
  ignore_cuda(result);
  return result;
}

void NcclChannel::settle() {
  settle([this] {
    const std::lock_guard lock(mutex_);
    check_alive();
    return is_done(communicator_, current_.call.shown);
  });
}

void NcclChannel::check_alive() const {
  if (!aborted_) return;
  host_->rethrow_failure(text(current_));
  throw CommunicationError(
      fmt::format("rank {}: {}: the communicator was aborted", host_->global_rank(), text(current_)), -1);
}

// ---- the watch ----

void NcclChannel::forget_landed() {
  const std::uint32_t landed = landed_->load();
  while (in_flight_ > 0 && device::is_past(landed, flight(0).ticket)) {
    oldest_ = (oldest_ + 1) % flights_.size();
    --in_flight_;
  }
}

void NcclChannel::make_room(std::size_t flights) {
  if (in_flight_ > 0)
    throw UsageError(
        fmt::format("{}: a captured step begins while calls of another are in flight", text(flight(0).call)));
  if (flights_.size() >= flights) return;
  flights_.resize(flights);
  oldest_ = 0;
}

void NcclChannel::look() {
  std::optional<NcclCall> late;
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    is_done(communicator_, "NCCL");
    forget_landed();
    if (in_flight_ == 0) return;
    Flight& first = flight(0);
    if (!first.left) {
      if (device::is_past(begun_->load(), first.ticket)) first.left.emplace(deadline_);
    } else if (first.left->over()) {
      late = first.call;
    }
  }
  if (late) report_late(*late);
}

ncclComm_t NcclChannel::take() noexcept {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  return std::exchange(communicator_, nullptr);
}

std::string NcclChannel::oldest() {
  const std::lock_guard lock(mutex_);
  forget_landed();
  return in_flight_ == 0 ? std::string() : text(flight(0).call);
}

// ---- errors ----

std::string NcclChannel::text(const NcclCall& call) const {
  return fmt::format("{} on '{}'", call.call.text(call.sequence), host_->name());
}

void NcclChannel::report(int culprit, const std::string& message) {
  host_->fail(culprit, message);
  throw CommunicationError(fmt::format("rank {}: {}", host_->global_rank(), message), culprit);
}

void NcclChannel::report_late(const NcclCall& call) {
  const nanoseconds deadline = this->deadline();
  if (call.peer >= 0)
    report(call.peer, fmt::format("{}: no answer from rank {} within {}", text(call), call.peer,
                                  device::time_text(deadline)));
  report(-1, fmt::format("{}: the GPUs have not completed it within {}", text(call),
                         device::time_text(deadline)));
}

}  // namespace tessera::comm
