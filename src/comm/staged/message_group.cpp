#include "src/comm/staged/message_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace tessera::comm {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr std::int64_t kBufferBytes = 256 * 1024;
constexpr std::int64_t kLine = 64;
// Between looks while waiting; it grows to the longest.
constexpr microseconds kFirstNap{10}, kLongestNap{1000};
// A rank's last messages may come behind the notice that it has ended.
constexpr std::chrono::milliseconds kGrace{200};

enum Tag { header, payload, message_header, message_payload };  // behind the group's first tag

}  // namespace

// ---- what is on its way ----

class MessageGroup::InFlight {
 public:
  explicit InFlight(MessageGroup& group) : group_(group) { group_.in_flight_ = true; }
  void landed() { group_.in_flight_ = false; }

 private:
  MessageGroup& group_;
};

MessageGroup::MessageGroup(Place place)
    : StagedGroup(std::move(place)),
      tags_(world()->transport().take_tags(key(), name(), global_ranks())),
      memory_(std::make_unique<Memory>()),
      sent_to_(members()),
      taken_from_(members()) {
  buffer_bytes_ = std::max(kBufferBytes, members() * kLine);
  const auto bytes = static_cast<std::size_t>(buffer_bytes_);
  memory_->outgoing.reset(new std::byte[bytes]);  // not touched before it is used
  for (int member = 0; member < members(); ++member)
    memory_->incoming.emplace_back(member == me() ? nullptr : new std::byte[bytes]);
  memory_->calls = IdVector<SharedCall>(members());
  memory_->headers = world()->transport().transfers(2 * members());
  memory_->payloads = world()->transport().transfers(2 * members());
}

// What is still on its way keeps its memory, and its tags.
MessageGroup::~MessageGroup() {
  const bool done = !in_flight_ || (memory_->headers->abandon() && memory_->payloads->abandon());
  if (done)
    world()->transport().give_back_tags(key());
  else
    static_cast<void>(memory_.release());
}

template <class Action>
auto MessageGroup::attempt(const Transfers& transfers, const Action& action) try {
  return action();
} catch (const TransferError& error) {
  report_unreachable(error.slot() < 0 ? first_missing(transfers) : error.slot() % members(), error.what());
}

void MessageGroup::report_unreachable(int peer, const char* what) {
  SharedWorld& shared = world()->shared();
  const int rank = global_rank(peer);
  for (device::Patience patience(kGrace); !shared.failed() && !shared.ended(rank) && !patience.over();
       std::this_thread::sleep_for(kLongestNap))
    world()->look_around();
  if (shared.failed()) throw_failed();
  if (shared.ended(rank)) throw_missing(nanoseconds::zero(), [&](int member) { return member == peer; });
  report(rank, fmt::format("{}: rank {} cannot be reached: {}", current(), rank, what));
}

// ---- waits ----

bool MessageGroup::missing(const Transfers& transfers, int member) const {
  return transfers.busy(receive_of(member)) || transfers.busy(send_of(member));
}

int MessageGroup::first_missing(const Transfers& transfers) const {
  int member = 0;
  while (member + 1 < members() && !missing(transfers, member)) ++member;
  return member;
}

// Throws if the world has failed or a peer that is waited for ended a while ago.
void MessageGroup::look_at_peers(const Transfers& transfers, device::Clock::time_point& ended_since) {
  world()->look_around();
  SharedWorld& shared = world()->shared();
  if (shared.failed()) throw_failed();
  if (!shared.any_ended()) return;
  bool ended = false;
  for (int member = 0; member < members(); ++member)
    ended = ended || (missing(transfers, member) && shared.ended(global_rank(member)));
  const auto now = device::Clock::now();
  if (!ended)
    ended_since = device::Clock::time_point::max();
  else if (ended_since == device::Clock::time_point::max())
    ended_since = now;
  else if (now - ended_since >= kGrace)
    throw_missing(nanoseconds::zero(), [&](int member) { return missing(transfers, member); });
}

void MessageGroup::wait(Transfers& transfers, nanoseconds deadline) {
  const device::WaitPolicy& policy = world()->policy();
  device::Patience patience(deadline);
  auto ended_since = device::Clock::time_point::max();
  device::Yields yields(policy);
  microseconds nap = kFirstNap;
  for (int look = 0;; ++look) {
    if (attempt(transfers, [&] { return transfers.poll(); })) return;
    if (look < policy.spins / 20) continue;
    if (yields.yield()) continue;
    look_at_peers(transfers, ended_since);
    if (patience.over()) throw_missing(deadline, [&](int member) { return missing(transfers, member); });
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, kLongestNap);
  }
}

// ---- collectives ----

void MessageGroup::announce(const Call& call, std::uint64_t sequence) {
  memory_->own = SharedCall(call, sequence);
  if (in_flight_ || world()->shared().failed()) throw_failed();
}

void MessageGroup::begin(const Call& call) {
  announce(call, sequence_ + 1);
  ++sequence_;
  first_exchange_ = true;
}

void MessageGroup::post_headers() {
  Transfers& headers = *memory_->headers;
  attempt(headers, [&] {
    for_each_peer(me(), members(), [&](int peer) {
      headers.receive(receive_of(peer), global_rank(peer), tags_ + header, &call_of(peer),
                      sizeof(SharedCall));
      headers.send(send_of(peer), global_rank(peer), tags_ + header, &memory_->own, sizeof(SharedCall));
    });
  });
}

void MessageGroup::post_payloads(const Traffic& traffic) {
  Transfers& payloads = *memory_->payloads;
  const auto offset_of = [&](int member) { return std::min(buffer_bytes_, member * traffic.stride_bytes); };
  const std::int64_t own_offset = offset_of(me());
  attempt(payloads, [&] {
    for_each_peer(me(), members(), [&](int peer) {
      if (traffic.shows(peer))
        payloads.receive(receive_of(peer), global_rank(peer), tags_ + payload, buffer_of(peer) + own_offset,
                         buffer_bytes_ - own_offset);
      if (traffic.shows(me()))
        payloads.send(send_of(peer), global_rank(peer), tags_ + payload, outgoing() + offset_of(peer),
                      traffic.bytes_for(peer));
    });
  });
}

void MessageGroup::exchange(const Traffic& traffic, nanoseconds deadline) {
  InFlight messages(*this);
  if (first_exchange_) post_headers();
  post_payloads(traffic);
  if (first_exchange_) {
    wait(*memory_->headers, deadline);
    for (int member = 0; member < members(); ++member)
      if (member != me()) check_match(memory_->own, call_of(member), member);
  }
  first_exchange_ = false;
  wait(*memory_->payloads, deadline);
  messages.landed();
}

// ---- messages ----

void MessageGroup::send(int to, const Call& call, const void* source, nanoseconds deadline) {
  announce(call, ++sent_to_[to]);
  InFlight messages(*this);
  Transfers &headers = *memory_->headers, &payloads = *memory_->payloads;
  const int slot = send_of(to), rank = global_rank(to);
  attempt(headers,
          [&] { headers.send(slot, rank, tags_ + message_header, &memory_->own, sizeof(SharedCall)); });
  std::int64_t begin = 0;
  do {
    const std::int64_t bytes = std::min(buffer_bytes_, call.count - begin);
    kernels::copy(outgoing(), static_cast<const char*>(source) + begin, bytes);
    attempt(payloads, [&] { payloads.send_taken(slot, rank, tags_ + message_payload, outgoing(), bytes); });
    wait(payloads, deadline);
    begin += bytes;
  } while (begin < call.count);
  wait(headers, deadline);
  messages.landed();
}

void MessageGroup::recv(int from, const Call& call, void* target, nanoseconds deadline) {
  announce(call, ++taken_from_[from]);
  InFlight messages(*this);
  Transfers &headers = *memory_->headers, &payloads = *memory_->payloads;
  const int slot = receive_of(from), rank = global_rank(from);
  attempt(headers,
          [&] { headers.receive(slot, rank, tags_ + message_header, &call_of(from), sizeof(SharedCall)); });
  wait(headers, deadline);
  check_message(memory_->own, call_of(from), from);
  std::int64_t begin = 0;
  do {
    const std::int64_t bytes = std::min(buffer_bytes_, call.count - begin);
    attempt(payloads, [&] { payloads.receive(slot, rank, tags_ + message_payload, buffer_of(from), bytes); });
    wait(payloads, deadline);
    kernels::copy(static_cast<char*>(target) + begin, buffer_of(from), bytes);
    begin += bytes;
  } while (begin < call.count);
  messages.landed();
}

// ---- errors ----

// By the last call that it told this rank: that of what it sent.
std::string MessageGroup::status_text(int member) const {
  const SharedCall& call = memory_->calls[member];
  return call.sequence == 0 ? "has sent nothing here" : call.status_text();
}

std::string MessageGroup::current() const {
  return fmt::format("{} on '{}'", memory_->own.local().text(memory_->own.sequence), name());
}

}  // namespace tessera::comm
