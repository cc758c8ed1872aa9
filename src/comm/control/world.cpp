#include "src/comm/control/world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "src/device/time_text.h"
#include "tessera/error.h"

namespace tessera::comm {
namespace {

using std::chrono::nanoseconds;

constexpr std::chrono::milliseconds kTryEach{20};
// Behind which it is said that nobody listens, whatever answered before.
constexpr std::chrono::seconds kLongAlone{1};
// Between two looks at how much time is left.
constexpr std::chrono::milliseconds kLookEach{50};
// How long a failure, or a rank's end, waits for what is being sent and for the hub to take it.
constexpr std::chrono::milliseconds kLastWords{500};

void check_fits(const std::string& call, std::size_t bytes) {
  if (bytes > static_cast<std::size_t>(kMostFrameBytes))
    throw UsageError(fmt::format("{}: {} bytes at once; a control connection takes at most {}", call, bytes,
                                 kMostFrameBytes));
}

// The hub keeps the deadlines; it is asked no longer than this beyond them, in which it has much to send.
nanoseconds grace(nanoseconds deadline) {
  return std::clamp<nanoseconds>(deadline / 4, std::chrono::seconds(1), std::chrono::seconds(5));
}

}  // namespace

ControlWorld::ControlWorld(const ControlOptions& options, std::int64_t piece_bytes)
    : options_(options), piece_bytes_(piece_bytes) {
  if (options_.rank == 0) hub_ = std::make_unique<ControlHub>(options_);
  try {
    join();
  } catch (const std::exception& error) {
    if (hub_) hub_->give_up(error.what());
    throw;
  }
  receiver_ = std::thread([this] { receive(); });
}

std::string ControlWorld::place() const {
  const bool colons = options_.address.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", colons ? "[" : "", options_.address, colons ? "]" : "", options_.port);
}

void ControlWorld::join() {
  device::Patience patience(options_.deadline);
  std::string met, alone;  // the first that was no rank 0; that nobody listens
  do {
    // Rank 0 itself needs no name for its host.
    const std::string address = hub_ ? "127.0.0.1" : options_.address;
    const nanoseconds left = met.empty() ? options_.deadline : patience.left();
    if (const asio::error_code error = link_.connect(address, options_.port, patience)) {
      if (met.empty() || left > std::min<nanoseconds>(kLongAlone, options_.deadline / 4))
        alone = fmt::format("no connection to rank 0 at {} {} {} ({})", place(),
                            met.empty() ? "within" : "for", device::time_text(left), error.message());
      break;
    }
    const std::string now = greet(patience);
    if (now.empty()) return;
    if (met.empty()) met = now;  // what it met while there was time
    std::this_thread::sleep_for(kTryEach);
  } while (!patience.over());
  throw_not_found(met, alone);
}

void ControlWorld::throw_not_found(const std::string& met, const std::string& alone) const {
  constexpr const char* kOther = "is no rank 0 of this build of Tessera, is stopped, or at its end";
  std::string what = alone;
  if (alone.empty())
    what = fmt::format("what answers at {} {} ({} within {})", place(), kOther, met,
                       device::time_text(options_.deadline));
  else if (!met.empty())
    what += fmt::format("; what answered there before {} ({})", kOther, met);
  throw CommunicationError(
      fmt::format("rank {}: {}; MASTER_ADDR and MASTER_PORT must name rank 0's host and a free port there",
                  rank(), what),
      0);
}

std::string ControlWorld::greet(device::Patience& patience) {
  const Hello hello{.rank = options_.rank, .world = options_.world, .launch = options_.launch};
  if (const asio::error_code error = link_.write(hello.packed(), patience.left()))
    return error == asio::error::timed_out ? "it took nothing" : "it ended each connection";
  try {
    const Frame frame = link_.read_first(patience);
    if (frame.header.kind == FrameKind::welcome) return {};
    if (frame.header.kind == FrameKind::refused)
      throw CommunicationError(
          fmt::format("rank {}: rank 0 at {} refused this process: {}", rank(), place(), frame.text()),
          rank());
  } catch (const EnvironmentError&) {
  } catch (const std::system_error& error) {
    return error.code() == asio::error::timed_out ? "it said nothing" : "it ended each connection";
  }
  throw CommunicationError(
      fmt::format("rank {}: what answers at {} is no rank 0 of this build of Tessera: MASTER_ADDR and "
                  "MASTER_PORT must name rank 0's host and a free port there",
                  rank(), place()),
      0);
}

ControlWorld::~ControlWorld() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  FrameHeader bye;
  bye.kind = FrameKind::bye;
  send(bye, {}, kLastWords);  // where it is not taken, the end of the connection says the same
  link_.shut();
  receiver_.join();
}

asio::error_code ControlWorld::send(const FrameHeader& header, std::span<const char> bytes,
                                    std::chrono::nanoseconds within) {
  return link_.write(packed(header, bytes), within);
}

void ControlWorld::note_unsent(const std::string& call, const asio::error_code& error,
                               std::chrono::nanoseconds within) {
  if (error == asio::error::timed_out) {
    note({rank(), 0,
          fmt::format("{}: rank 0 does not take what is sent within {}", call, device::time_text(within))});
  } else {
    // Rank 0 may have said why before it ended, and the receiver not have read it yet.
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kLastWords, [this] { return failure_.has_value(); });
    lock.unlock();
    note({0, 0, fmt::format("the connection to it ended: {}", error.message())});
  }
  link_.shut_if_broken();  // behind the note, which the receiver's would else forestall
}

void ControlWorld::receive() noexcept try {
  for (;;) {
    Frame frame = link_.read();
    if (frame.header.kind == FrameKind::failed) {
      {
        const std::lock_guard lock(mutex_);
        heard_ = true;
      }
      note({frame.header.member, frame.header.peer, frame.text()});
      continue;
    }
    if (frame.header.kind == FrameKind::ended) {
      const int rank = frame.header.member;
      if (rank < 0 || rank >= options_.world) throw EnvironmentError("a rank that is not of this world");
      const std::lock_guard lock(mutex_);
      ended_.push_back(rank);
      continue;
    }
    if (frame.header.kind != FrameKind::reply) throw EnvironmentError("not a frame that rank 0 sends");
    const std::lock_guard lock(mutex_);
    const auto slot = slots_.find(frame.header.id);
    if (slot == slots_.end()) continue;  // it has given up
    slot->second->bytes = std::move(frame.bytes);
    slot->second->done = true;
    changed_.notify_all();
  }
} catch (const std::system_error&) {
  lose({0, 0, "the connection to it ended, and so did its process"});
} catch (const std::exception& error) {
  lose({rank(), 0, fmt::format("what came from rank 0: {}", error.what())});
}

void ControlWorld::lose(Failure failure) {
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
  }
  note(std::move(failure));
}

std::uint64_t ControlWorld::announce(std::uint64_t parent, const std::vector<int>& ranks,
                                     const std::string& name) {
  const std::string call = fmt::format("group '{}'", name);
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
  check_fits(call, bytes.size());
  // The group's first call says what came of it.
  if (const auto error = send(header, bytes, options_.deadline)) note_unsent(call, error, options_.deadline);
  return header.group;
}

std::vector<char> ControlWorld::exchange(FrameHeader header, std::span<const char> bytes,
                                         const std::string& call) {
  check_fits(call, bytes.size());
  const std::chrono::microseconds deadline(header.deadline_us);
  Slot slot;
  header.kind = FrameKind::call;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw_failed(call, *failure_);
    header.id = ++last_id_;
    slots_[header.id] = &slot;
  }
  if (const auto error = send(header, bytes, deadline)) note_unsent(call, error, deadline);
  std::unique_lock lock(mutex_);
  device::Patience patience(deadline + grace(deadline));
  while (!changed_.wait_for(lock, kLookEach, [&] { return slot.done || failure_.has_value(); }))
    if (patience.over()) break;
  slots_.erase(header.id);
  if (slot.done) return std::move(slot.bytes);
  if (!failure_)
    failure_ = Failure{
        rank(), 0,
        fmt::format("{}: no answer from rank 0 within {} and {} more, in which its process should have said "
                    "for whom the call waits: it is stopped, or its host is out of reach",
                    call, device::time_text(deadline), device::time_text(grace(deadline)))};
  throw_failed(call, *failure_);
}

void ControlWorld::fail(int culprit, const std::string& message) {
  note({rank(), culprit, message});
  FrameHeader header;
  header.kind = FrameKind::fail;
  header.member = rank();
  header.peer = culprit;
  // Where it is not taken, the connection's end will tell the hub.
  const std::string_view words = std::string_view(message).substr(0, kMostFrameBytes);
  const asio::error_code error = send(header, words, kLastWords);
  link_.shut_if_broken();
  if (error || !hub_) return;
  // The process may end now, and the hub with it: it has told the others when it tells this rank.
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, ControlHub::kTells, [this] { return heard_; });
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

std::optional<Failure> ControlWorld::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::vector<int> ControlWorld::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

void ControlWorld::throw_failed(const std::string& call, const Failure& failure) const {
  // What the hub found on behalf of the call itself opens with it.
  const bool of_call = failure.reporter == rank() && failure.message.starts_with(call);
  const std::string what = of_call ? failure.message : fmt::format("{}: {}", call, told_to(rank(), failure));
  throw CommunicationError(fmt::format("rank {}: {}", rank(), what), failure.culprit);
}

}  // namespace tessera::comm
