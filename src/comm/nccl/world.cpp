#include "src/comm/nccl/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/comm/nccl/backend.h"
#include "src/device/cuda_work.h"
#include "src/device/time_text.h"
#include "src/device/wait.h"

namespace tessera {

Communicator make_nccl_world(const Communicator& host, const NcclOptions& given) {
  NcclOptions options = given;
  options.deadline = device::checked_deadline(given.deadline, "deadline");
  if (!host)
    throw UsageError(
        "host: an empty communicator; make one with make_local_world, make_mpi_world or make_control_world");
  if (options.staging_bytes < 1)
    throw UsageError(fmt::format("staging_bytes is {}; use 1 or more", options.staging_bytes));
  comm::nccl();  // refused here, not at the first call
  return Communicator(comm::NcclBackend::over(host.backend(), options));
}

NcclLibrary read_nccl_library() try {
  int version = 0;
  comm::check_nccl(comm::nccl().ncclGetVersion(&version), "ncclGetVersion");
  return {.version = comm::nccl_version_text(version), .unusable = {}};
} catch (const Error& error) {
  return {.version = {}, .unusable = error.what()};
}

namespace comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLookEach{5}, kUntilNextCall{250};

}  // namespace

NcclWorld::NcclWorld(std::shared_ptr<Backend> host, const NcclOptions& options)
    : host_(std::move(host)), options_(options) {}

NcclWorld::~NcclWorld() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  {
    const std::lock_guard lock(mutex_);
    for (auto& [ranks, parent] : parents_) taken_.push_back(parent.take());
    end_taken();
  }
  wait_for_ends(options_.deadline);
  free_staging();
}

void NcclWorld::refuse_turn(const std::string& what) const {
  throw UsageError(fmt::format(
      "{}: another thread is in a call of rank {}; the communicators that a rank has on its GPU are "
      "called by one thread at a time",
      what, host_->global_rank()));
}

void NcclWorld::attach(FailureFlag flag) {
  const std::lock_guard lock(mutex_);
  flags_.push_back(std::move(flag));
}

void NcclWorld::watch(NcclChannel& channel) {
  const std::lock_guard lock(mutex_);
  channels_.push_back(&channel);
  ordinal_ = channel.ordinal();
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
}

bool NcclWorld::forget(NcclChannel& channel, bool drained) noexcept {
  {
    std::unique_lock lock(mutex_);
    std::erase(channels_, &channel);
    ordinal_ = channel.ordinal();
    taken_.push_back({.communicator = channel.take()});
    const std::exception_ptr cause = drained ? nullptr : failure();
    if (cause) end_all(lock, cause);
    if (!drained || aborted_ || channels_.empty()) end_taken();
  }
  return wait_for_ends(channel.deadline());
}

void NcclWorld::give_back(const Staging& staging) noexcept {
  bool in_use = false;
  {
    const std::lock_guard lock(mutex_);
    staging_.push_back(staging);
    in_use = !channels_.empty();
  }
  if (!in_use) free_staging();
}

void NcclWorld::free_staging() noexcept try {
  std::vector<Staging> all;
  {
    const std::lock_guard lock(mutex_);
    all.swap(staging_);
  }
  if (all.empty()) return;
  device::ignore_cuda(cudaSetDevice(ordinal_));
  const std::shared_ptr<device::CudaWork> work = device::CudaWork::of(ordinal_);
  if (work->wait()) {
    for (const Staging& one : all) {
      if (one.of_nccl)
        nccl().ncclMemFree(one.memory);
      else
        device::ignore_cuda(cudaFree(one.memory));
    }
    return;
  }
  std::int64_t bytes = 0;
  for (const Staging& one : all) bytes += one.bytes;
  leave(bytes, "the GPU has not ended its work", work->deadline());
} catch (const std::exception&) {  // no memory to list what is given back
}

void NcclWorld::leave(std::int64_t bytes, const char* why, std::chrono::nanoseconds deadline) noexcept try {
  const std::string text =
      fmt::format("rank {}, GPU {}: {} within {}; {} bytes of staging memory are left to it",
                  host_->global_rank(), ordinal_, why, device::time_text(deadline), bytes);
  std::vector<FailureFlag> flags;
  {
    const std::lock_guard lock(mutex_);
    flags = flags_;
  }
  for (FailureFlag& flag : flags) flag.set(text);
} catch (const std::exception&) {  // no memory for the message
}

void NcclWorld::drop(NcclParent& parent) {
  const std::lock_guard lock(mutex_);
  taken_.push_back(parent.take());
}

void NcclWorld::end_all(std::unique_lock<std::mutex>& lock, const std::exception_ptr& cause) {
  aborted_ = true;
  for (NcclChannel* channel : channels_) taken_.push_back({.communicator = channel->take()});
  std::vector<FailureFlag> flags = std::exchange(flags_, {});
  lock.unlock();
  // First: an aborted kernel's stream looks as if it had done its work, and NCCL may take its time.
  for (FailureFlag& flag : flags) flag.set(cause);
  lock.lock();
  end_taken();
}

void NcclWorld::end_taken() {
  std::erase_if(taken_, [](const NcclHandle& one) { return one.communicator == nullptr; });
  if (!taken_.empty()) ends_.emplace_back(std::exchange(taken_, {}), ordinal_);
}

std::exception_ptr NcclWorld::failure() const noexcept try {
  host_->rethrow_failure({});
  return nullptr;
} catch (const std::exception&) {
  return std::current_exception();
}

bool NcclWorld::wait_for_ends(std::chrono::nanoseconds deadline) noexcept {
  std::vector<NcclEnd> ends;
  {
    const std::lock_guard lock(mutex_);
    ends = ends_;
  }
  const Clock::time_point limit = Clock::now() + std::chrono::duration_cast<Clock::duration>(deadline);
  const bool done = std::ranges::all_of(ends, [&](const NcclEnd& end) { return end.wait_until(limit); });
  const std::lock_guard lock(mutex_);
  std::erase_if(ends_, [](const NcclEnd& end) { return end.wait_until(Clock::now()); });
  return done;
}

void NcclWorld::run() {
  std::unique_lock lock(mutex_);
  while (!ended_) {
    changed_.wait_for(lock, kLookEach);
    if (ended_) return;
    try {
      look();
    } catch (...) {
      end_all(lock, std::current_exception());
    }
  }
}

void NcclWorld::look() {
  std::string call;
  for (NcclChannel* channel : channels_)
    if (call.empty()) call = channel->oldest();
  const bool between_calls = call.empty();
  if (between_calls) call = "between calls";
  try {
    host_->rethrow_failure(call);
  } catch (const std::exception&) {
    const Clock::time_point now = Clock::now();
    if (!peer_failed_) peer_failed_ = now;
    // Where a call follows soon, it is that call which meets the peer's end: the message names it.
    if (between_calls && now - *peer_failed_ < kUntilNextCall) return;
    throw;
  }
  for (NcclChannel* channel : channels_) try {
      channel->look();
    } catch (const CommunicationError&) {
      throw;
    } catch (const std::exception& error) {
      host_->rethrow_failure(call);  // NCCL's error is a consequence where a peer has said more
      host_->fail(host_->global_rank(), fmt::format("{}: {}", call, error.what()));
      throw CommunicationError(fmt::format("rank {}: {}: {}", host_->global_rank(), call, error.what()),
                               host_->global_rank());
    }
}

}  // namespace comm
}  // namespace tessera
