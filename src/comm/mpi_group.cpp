#include "src/comm/mpi_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

namespace tessera::comm {
namespace {

using std::chrono::nanoseconds;

// A buffer stays in the second-level cache between the one that writes it and those that read it.
constexpr std::int64_t kBestBuffer = 256 * 1024;
constexpr std::int64_t kLeastBuffer = 4096;
constexpr std::int64_t kLine = 64;

std::int64_t rounded_down(std::int64_t value, std::int64_t unit) { return value / unit * unit; }

}  // namespace

// ---- the shared range ----

MpiGroup::SharedCall::SharedCall(const LocalCall& from) : call(from) {
  std::string_view(from.shown).copy(shown.data(), shown.size() - 1);
  call.shown = nullptr;  // an address of this process
}

LocalCall MpiGroup::SharedCall::local() const {
  LocalCall result = call;
  result.shown = shown.data();
  return result;
}

std::int64_t MpiGroup::head_bytes(int members) {
  return static_cast<std::int64_t>(sizeof(Head)) + members * static_cast<std::int64_t>(sizeof(Slot));
}

void MpiGroup::lay_out(const SharedWorld::Room& room) const {
  new (room.base) Head;
  auto* const slots = reinterpret_cast<Slot*>(room.base + sizeof(Head));
  for (int member = 0; member < members(); ++member) new (slots + member) Slot;
}

MpiGroup::MpiGroup(std::shared_ptr<MpiWorld> world, const GroupKey& parent, std::vector<int> global_ranks,
                   int me, std::string name)
    : world_(std::move(world)),
      name_(std::move(name)),
      global_ranks_(std::move(global_ranks)),
      me_(me),
      key_(world_->key_of(parent, global_ranks_, name_)),
      sent_to_(global_ranks_.size()),
      taken_from_(global_ranks_.size()) {
  const int n = members();
  // Every peer's part of a buffer has at least a cache line.
  const std::int64_t least = std::max(kLeastBuffer, n * kLine);
  room_ = world_->shared().join({.key = key_,
                                 .members = n,
                                 .best_bytes = head_bytes(n) + 2 * n * std::max(kBestBuffer, least),
                                 .least_bytes = head_bytes(n) + 2 * n * least},
                                [this](const SharedWorld::Room& room) { lay_out(room); });
  head_ = reinterpret_cast<Head*>(room_.base);
  slots_ = reinterpret_cast<Slot*>(room_.base + sizeof(Head));
  buffers_ = room_.base + head_bytes(n);
  buffer_bytes_ = rounded_down((room_.bytes - head_bytes(n)) / (2 * n), 2 * kLine);
}

MpiGroup::~MpiGroup() { world_->shared().leave(room_.group); }

std::byte* MpiGroup::buffer(int member, std::uint64_t phase) const {
  return buffers_ + (2 * member + static_cast<int>(phase % 2)) * buffer_bytes_;
}

// ---- barriers and matching ----

void MpiGroup::announce(const LocalCall& call, std::uint64_t sequence) {
  Slot& own = slot(me_);
  {
    const std::lock_guard lock(own.status_mutex);
    own.status = SharedCall(call);
    own.status_sequence = sequence;
  }
  if (world_->shared().failed()) world_->throw_failed(current());
}

void MpiGroup::begin(const LocalCall& call) {
  announce(call, sequence_ + 1);
  ++sequence_;
  slot(me_).calls[sequence_ % 2] = SharedCall(call);
}

template <class Done, class IsMissing>
void MpiGroup::wait(SharedSignal& signal, nanoseconds deadline, const Done& done, const IsMissing& missing) {
  SharedWorld& shared = world_->shared();
  const auto peer_ended = [&] {
    for (int member = 0; member < members(); ++member)
      if (shared.ended(global_rank(member)) && missing(member)) return true;
    return false;
  };
  const auto ready = [&] { return done() || shared.failed() || (shared.any_ended() && peer_ended()); };
  const bool in_time =
      signal.wait(world_->policy(), deadline, ready, [&] { shared.look_for_dead(world_->rank()); });
  if (done()) return;
  if (shared.failed()) world_->throw_failed(current());
  throw_missing(in_time ? nanoseconds::zero() : deadline, missing);
}

void MpiGroup::barrier(nanoseconds deadline) {
  ++phase_;
  const std::uint64_t target = phase_ * static_cast<std::uint64_t>(members());
  slot(me_).phase.store(phase_);
  if (head_->arrivals.fetch_add(1) + 1 == target) return head_->signal.notify();
  wait(
      head_->signal, deadline, [&] { return head_->arrivals.load() >= target; },
      [&](int member) { return slot(member).phase.load() < phase_; });
}

void MpiGroup::check_match() {
  const auto call_of = [&](int member) { return slot(member).calls[sequence_ % 2].local(); };
  const LocalCall own = call_of(me_);
  for (int member = 0; member < members(); ++member) {
    const LocalCall peer = call_of(member);
    if (own.matches(peer)) continue;
    report(-1, fmt::format("{} on '{}': rank {} called {}; all must make the same calls in the same order",
                           own.full_text(sequence_), name_, global_rank(member), peer.full_text(sequence_)));
  }
}

// ---- messages ----

// A message goes through the sender's free buffer, in pieces of half of it, of which two are on their way.
std::int64_t MpiGroup::pieces_of(std::int64_t bytes) const {
  return std::max<std::int64_t>(1, (bytes + piece_bytes() - 1) / piece_bytes());
}

std::byte* MpiGroup::piece(int from, std::int64_t index) const {
  return buffer(from, slot(from).message_buffer) + index % 2 * piece_bytes();
}

void MpiGroup::send(int to, const LocalCall& call, const void* source, nanoseconds deadline) {
  announce(call, ++sent_to_[static_cast<std::size_t>(to)]);
  Slot& own = slot(me_);
  const auto in_flight_at_most = [&](std::uint64_t pieces) {
    const auto few = [&] { return own.posted.load() - own.taken.load() <= pieces; };
    wait(own.signal, deadline, few, [&](int member) { return member == to && !few(); });
  };
  own.message = SharedCall(call);
  own.message_buffer = phase_ + 1;
  own.to.store(to);
  for (std::int64_t index = 0; index < pieces_of(call.count); ++index) {
    const std::int64_t begin = index * piece_bytes();
    in_flight_at_most(1);
    copy_bytes(piece(me_, index), static_cast<const char*>(source) + begin,
               std::min(piece_bytes(), call.count - begin));
    own.posted.fetch_add(1);
    own.signal.notify();
  }
  in_flight_at_most(0);
}

void MpiGroup::recv(int from, const LocalCall& call, void* target, nanoseconds deadline) {
  const std::uint64_t sequence = ++taken_from_[static_cast<std::size_t>(from)];
  announce(call, sequence);
  Slot& way = slot(from);
  const auto posted = [&] { return way.to.load() == me_ && way.posted.load() > way.taken.load(); };
  for (std::int64_t index = 0; index < pieces_of(call.count); ++index) {
    wait(way.signal, deadline, posted, [&](int member) { return member == from && !posted(); });
    const LocalCall sent = way.message.local();
    if (sent.count != call.count || sent.unit != call.unit)
      report(-1, fmt::format("{} on '{}': rank {} called {}; both must name the same unit and bytes",
                             call.full_text(sequence), name_, global_rank(from), sent.full_text(sequence)));
    const std::int64_t begin = index * piece_bytes();
    copy_bytes(static_cast<char*>(target) + begin, piece(from, index),
               std::min(piece_bytes(), call.count - begin));
    way.taken.fetch_add(1);
    way.signal.notify();
  }
}

// ---- errors ----

std::string MpiGroup::status_text(int member) const {
  Slot& peer = slot(member);
  const std::lock_guard lock(peer.status_mutex);
  if (peer.status_sequence == 0) return "has made no call";
  const LocalCall call = peer.status.local();
  const std::string unit = call.unit[0] == '\0' ? "" : fmt::format(" of unit '{}'", call.unit.data());
  return fmt::format("is at #{}, {}{}", peer.status_sequence, call.shown, unit);
}

std::string MpiGroup::current() const {
  const Slot& own = slot(me_);  // written by this thread only
  return fmt::format("{} on '{}'", own.status.local().text(own.status_sequence), name_);
}

void MpiGroup::report(int culprit, const std::string& message) {
  world_->fail(culprit, message);
  throw CommunicationError(fmt::format("rank {}: {}", world_->rank(), message), culprit);
}

void MpiGroup::throw_missing(nanoseconds deadline, const Missing& missing) {
  std::vector<int> absent;
  for (int member = 0; member < members(); ++member)
    if (member != me_ && missing(member)) absent.push_back(member);
  // One that has ended will never answer; otherwise the first.
  const auto ended = [&](int member) { return world_->shared().ended(global_rank(member)); };
  auto found = std::find_if(absent.begin(), absent.end(), ended);
  if (found == absent.end()) found = absent.begin();
  if (found == absent.end()) report(-1, current() + ": the deadline passed");
  const int culprit = global_rank(*found);
  if (ended(*found)) report(culprit, fmt::format("{}: rank {} has ended", current(), culprit));
  const std::string others = absent.size() > 1 ? fmt::format(" and {} others", absent.size() - 1) : "";
  report(culprit,
         fmt::format("{}: no answer from rank {}{} within {:.1f} s (rank {} {})", current(), culprit, others,
                     std::chrono::duration<double>(deadline).count(), culprit, status_text(*found)));
}

}  // namespace tessera::comm
