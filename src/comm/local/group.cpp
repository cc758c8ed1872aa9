#include "src/comm/local/group.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::comm {

using std::chrono::nanoseconds;

// ---- barriers and matching ----

LocalGroup::LocalGroup(LocalWorld& world, std::string name, IdVector<int> global_ranks)
    : world_(world),
      name_(std::move(name)),
      global_ranks_(std::move(global_ranks)),
      slots_(global_ranks_.size()) {}

void LocalGroup::announce(int me, const Call& call, std::uint64_t sequence) {
  Slot& own = slot(me);
  {
    const std::lock_guard lock(own.status_mutex);
    own.status = call;
    own.status_sequence = sequence;
  }
  if (world_.failed()) throw_failed(me);
}

void LocalGroup::begin(int me, const Call& call, const void* source) {
  Slot& own = slot(me);
  announce(me, call, own.sequence + 1);
  ++own.sequence;
  own.call = call;  // every peer has left the call before this one
  own.source = source;
}

template <class Done, class IsMissing>
void LocalGroup::wait(int me, device::Signal& signal, nanoseconds deadline, const Done& done,
                      const IsMissing& missing) {
  const auto peer_ended = [&] {
    for (int member = 0; member < members(); ++member)
      if (world_.ended(global_rank(member)) && missing(member)) return true;
    return false;
  };
  const auto ready = [&] { return done() || world_.failed() || (world_.any_ended() && peer_ended()); };
  const bool in_time = signal.wait(world_.policy(), deadline, ready);
  if (done()) return;
  if (world_.failed()) throw_failed(me);
  throw_missing(me, in_time ? nanoseconds::zero() : deadline, missing);
}

void LocalGroup::barrier(int me, nanoseconds deadline) {
  const std::uint64_t phase = slot(me).phase.load() + 1;
  const std::uint64_t target = phase * slots_.size();
  // Read where a member has ended, which orders it, and in reports.
  slot(me).phase.store(phase, std::memory_order_relaxed);
  if (arrivals_.fetch_add(1) + 1 == target) return arrival_signal_.notify();
  wait(
      me, arrival_signal_, deadline, [&] { return arrivals_.load() >= target; },
      [&](int member) { return slot(member).phase.load() < phase; });
}

void LocalGroup::check_match(int me) {
  const Slot& own = slot(me);
  for (int member = 0; member < members(); ++member) {
    const Slot& peer = slot(member);
    if (own.call.matches(peer.call)) continue;
    report(me, -1,
           fmt::format("{} on '{}': rank {} called {}; all must make the same calls in the same order",
                       own.call.full_text(own.sequence), name_, global_rank(member),
                       peer.call.full_text(peer.sequence)));
  }
}

void LocalGroup::start_reading(int me) {
  slot(me).reading.store(true);
  if (!world_.failed()) return;
  stop_reading(me);
  throw_failed(me);
}

void LocalGroup::abandon(int me, nanoseconds deadline) noexcept {
  // Every way here has marked the world failed, so no peer begins to read.
  device::Patience patience(deadline);
  for (int member = 0; member < members(); ++member)
    while (member != me && slot(member).reading.load() && !patience.over())
      device::pause_for(std::chrono::microseconds(50));
}

// ---- messages ----

LocalGroup::Channel& LocalGroup::channel(int from, int to) {
  std::call_once(channels_once_, [&] { channels_ = IdVector<Channel>(slots_.size() * slots_.size()); });
  return channels_[std::int64_t{from} * members() + to];
}

void LocalGroup::send(int me, int to, const Call& call, const void* source, nanoseconds deadline) {
  Channel& way = channel(me, to);
  const std::uint64_t sequence = way.posted.load() + 1;
  announce(me, call, sequence);
  way.call = call;
  way.source = source;
  way.posted.store(sequence);
  way.signal.notify();
  const auto taken = [&] { return way.taken.load() >= sequence; };
  try {
    wait(me, way.signal, deadline, taken, [&](int member) { return member == to && !taken(); });
  } catch (...) {
    abandon(me, deadline);
    throw;
  }
}

void LocalGroup::recv(int me, int from, const Call& call, void* target, nanoseconds deadline) {
  Channel& way = channel(from, me);
  const std::uint64_t sequence = way.taken.load() + 1;
  announce(me, call, sequence);
  const auto posted = [&] { return way.posted.load() >= sequence; };
  wait(me, way.signal, deadline, posted, [&](int member) { return member == from && !posted(); });
  if (way.call.count != call.count || way.call.unit != call.unit)
    report(me, -1,
           fmt::format("{} on '{}': rank {} called {}; both must name the same unit and bytes",
                       call.full_text(sequence), name_, global_rank(from), way.call.full_text(sequence)));
  start_reading(me);
  kernels::copy(target, way.source, call.count);
  stop_reading(me);
  way.taken.store(sequence);
  way.signal.notify();
}

// ---- errors ----

std::string LocalGroup::Slot::status_text() const {
  const std::lock_guard lock(status_mutex);
  if (status_sequence == 0) return "has made no call there";
  const std::string unit = status.unit[0] == '\0' ? "" : fmt::format(" of unit '{}'", status.unit.data());
  return fmt::format("is at #{}, {}{}", status_sequence, status.shown, unit);
}

std::string LocalGroup::current(int me) const {
  const Slot& own = slot(me);
  const std::lock_guard lock(own.status_mutex);
  return fmt::format("{} on '{}'", own.status.text(own.status_sequence), name_);
}

void LocalGroup::report(int me, int culprit, const std::string& message) {
  world_.fail(global_rank(me), culprit, message);
  throw CommunicationError(fmt::format("rank {}: {}", global_rank(me), message), culprit);
}

void LocalGroup::throw_failed(int me) const { world_.throw_failed(global_rank(me), current(me)); }

void LocalGroup::throw_missing(int me, nanoseconds deadline, const Missing& missing) {
  std::vector<int> absent, members_absent;
  for (int member = 0; member < members(); ++member) {
    if (member == me || !missing(member)) continue;
    members_absent.push_back(member);
    absent.push_back(global_rank(member));
  }
  const Blame blame =
      blame_for({.call = current(me),
                 .reporter = global_rank(me),
                 .ranks = world_.ranks(),
                 .absent = absent,
                 .deadline = deadline,
                 .ended = [&](int rank) { return world_.ended(rank); },
                 .state = [&](int rank) { return world_.state(rank); },
                 .status = [&](std::size_t k) { return slot(members_absent[k]).status_text(); }});
  if (blame.culprit >= 0) absent.push_back(blame.culprit);
  world_.fail(global_rank(me), blame.culprit, blame.message, absent);
  throw CommunicationError(fmt::format("rank {}: {}", global_rank(me), blame.message), blame.culprit);
}

}  // namespace tessera::comm
