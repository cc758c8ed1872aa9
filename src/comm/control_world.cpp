#include "src/comm/control_world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <cstring>

#include "tessera/error.h"

namespace tessera::comm {
namespace {

using asio::ip::tcp;
using device::Clock;

constexpr std::chrono::milliseconds kTryEach{20};
// The hub keeps the deadlines; it is asked no longer than this beyond them.
constexpr std::chrono::seconds kHubGrace{5};
constexpr std::chrono::milliseconds kHubTells{500};

}  // namespace

ControlWorld::ControlWorld(const ControlOptions& options) : options_(options), socket_(io_) {
  if (options_.rank == 0)
    hub_ = std::make_unique<ControlHub>(options_.world, options_.port, options_.deadline);
  connect();
  FrameHeader hello;
  hello.member = options_.rank;
  send(hello, {});
  receiver_ = std::thread([this] { receive(); });
}

void ControlWorld::connect() {
  const Clock::time_point limit = Clock::now() + options_.deadline;
  for (;;) {
    asio::error_code error;
    const auto places = tcp::resolver(io_).resolve(options_.address, std::to_string(options_.port), error);
    if (!error) asio::connect(socket_, places, error);
    if (!error) break;
    if (Clock::now() >= limit)
      throw CommunicationError(
          fmt::format("rank {}: no connection to rank 0 at {}:{} within {:.1f} s ({}); MASTER_ADDR and "
                      "MASTER_PORT must name its host and a free port there",
                      options_.rank, options_.address, options_.port,
                      std::chrono::duration<double>(options_.deadline).count(), error.message()),
          0);
    std::this_thread::sleep_for(kTryEach);
  }
  socket_.set_option(tcp::no_delay(true));
}

ControlWorld::~ControlWorld() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  try {
    FrameHeader bye;
    bye.kind = FrameKind::bye;
    send(bye, {});
    socket_.shutdown(tcp::socket::shutdown_both);
  } catch (const std::exception&) {  // it is gone
  }
  if (receiver_.joinable()) receiver_.join();
}

void ControlWorld::send(const FrameHeader& header, std::span<const char> bytes) {
  const std::vector<char> frame = packed(header, bytes);
  const std::lock_guard lock(sending_);
  asio::write(socket_, asio::buffer(frame));
}

void ControlWorld::receive() noexcept try {
  for (;;) {
    Frame frame = read_frame(socket_);
    if (frame.header.kind == FrameKind::failed) {
      {
        const std::lock_guard lock(mutex_);
        heard_ = true;
      }
      note({frame.header.member, frame.header.peer, {frame.bytes.begin(), frame.bytes.end()}});
      continue;
    }
    const std::lock_guard lock(mutex_);
    const auto slot = slots_.find(frame.header.id);
    if (slot == slots_.end()) continue;  // it has given up
    slot->second->bytes = std::move(frame.bytes);
    slot->second->done = true;
    changed_.notify_all();
  }
} catch (const std::exception&) {
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
  }
  note({0, 0, "the connection to it ended, and so did its process"});
}

std::uint64_t ControlWorld::announce(std::uint64_t parent, const std::vector<int>& ranks,
                                     const std::string& name) {
  const std::string arguments = fmt::format("{:x}|{}|{}", parent, fmt::join(ranks, ","), name);
  FrameHeader header;
  header.kind = FrameKind::group;
  header.member = static_cast<std::int32_t>(ranks.size());
  {
    const std::lock_guard lock(mutex_);
    const std::string text = fmt::format("{}|{}", occurrences_[arguments]++, arguments);
    header.group = XXH3_64bits(text.data(), text.size());
  }
  std::vector<char> bytes(ranks.size() * sizeof(int));
  std::memcpy(bytes.data(), ranks.data(), bytes.size());
  bytes.insert(bytes.end(), name.begin(), name.end());
  try {
    send(header, bytes);
  } catch (const std::system_error&) {  // the group's first call says so
  }
  return header.group;
}

std::vector<char> ControlWorld::exchange(FrameHeader header, std::span<const char> bytes,
                                         const std::string& call) {
  Slot slot;
  header.kind = FrameKind::call;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw_failed(call, *failure_);
    header.id = ++last_id_;
    slots_[header.id] = &slot;
  }
  try {
    send(header, bytes);
  } catch (const std::system_error& error) {
    note({0, 0, fmt::format("the connection to it ended: {}", error.what())});
  }
  std::unique_lock lock(mutex_);
  const auto limit = std::chrono::microseconds(header.deadline_us) + kHubGrace;
  changed_.wait_for(lock, limit, [&] { return slot.done || failure_.has_value(); });
  slots_.erase(header.id);
  if (slot.done) return std::move(slot.bytes);
  if (!failure_)
    failure_ = Failure{rank(), 0, fmt::format("{}: rank 0 does not serve the control connections", call)};
  throw_failed(call, *failure_);
}

void ControlWorld::fail(int culprit, const std::string& message) {
  note({rank(), culprit, message});
  FrameHeader header;
  header.kind = FrameKind::fail;
  header.member = rank();
  header.peer = culprit;
  try {
    send(header, message);
  } catch (const std::system_error&) {  // then the hub knows
  }
  if (!hub_) return;
  // The process may end now, and the hub with it: it has told the others when it tells this rank.
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kHubTells, [this] { return heard_; });
}

void ControlWorld::note(Failure failure) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(failure);
  changed_.notify_all();
}

void ControlWorld::rethrow_failure(const std::string& call) {
  const std::lock_guard lock(mutex_);
  if (failure_) throw_failed(call, *failure_);
}

void ControlWorld::throw_failed(const std::string& call, const Failure& failure) const {
  std::string what;
  if (failure.reporter == rank())
    what = fmt::format("this rank failed before: {}", failure.message);
  else if (failure.reporter == failure.culprit)
    what = fmt::format("rank {} failed: {}", failure.culprit, failure.message);
  else
    what = fmt::format("rank {} reported: {}", failure.reporter, failure.message);
  // What the hub found on behalf of the call itself opens with it.
  if (failure.reporter == rank() && failure.message.starts_with(call))
    what = failure.message;
  else
    what = fmt::format("{}: {}", call, what);
  throw CommunicationError(fmt::format("rank {}: {}", rank(), what), failure.culprit);
}

}  // namespace tessera::comm
