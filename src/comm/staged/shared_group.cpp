#include "src/comm/staged/shared_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <thread>

namespace tessera::comm {
namespace {

using std::chrono::nanoseconds;

// A buffer stays in the second-level cache between the one that writes it and those that read it.
constexpr std::int64_t kBestBuffer = 256 * 1024;
constexpr std::int64_t kLeastBuffer = 4096;
constexpr std::int64_t kLine = 64;
// Below, a copy more costs less than a barrier more.
constexpr std::int64_t kPullBytes = 1024;
constexpr std::chrono::milliseconds kToBeGone{1000}, kBetweenLooks{1};  // for a process that died

std::int64_t rounded_down(std::int64_t value, std::int64_t unit) { return value / unit * unit; }

}  // namespace

// ---- the shared range ----

std::int64_t SharedGroup::head_bytes(int members) {
  return static_cast<std::int64_t>(sizeof(Head)) + members * static_cast<std::int64_t>(sizeof(Slot));
}

void SharedGroup::lay_out(const SharedWorld::Room& room) const {
  new (room.base) Head;
  auto* const slots = reinterpret_cast<Slot*>(room.base + sizeof(Head));
  for (int member = 0; member < members(); ++member) new (slots + member) Slot;
}

SharedWorld::Room SharedGroup::join(const SharedWorld::RoomWanted& wanted) {
  try {
    return world()->shared().join(world()->rank(), wanted, world()->options().deadline,
                                  [this](const SharedWorld::Room& room) { lay_out(room); });
  } catch (const EnvironmentError&) {
    // A failure that has happened is why, and names who is to blame; one that died is named when it is gone.
    for (device::Patience patience(kToBeGone);; std::this_thread::sleep_for(kBetweenLooks)) {
      world()->rethrow_failure(fmt::format("making the communicator '{}'", name()));
      if (!world()->shared().lost_table() || patience.over()) throw;
    }
  }
}

SharedGroup::SharedGroup(Place place)
    : StagedGroup(std::move(place)),
      Puller(StagedGroup::members()),
      read_from_(members()),
      sent_to_(members()),
      taken_from_(members()) {
  const int n = members();
  // Every peer's part of a buffer has at least a cache line.
  const std::int64_t least = std::max(kLeastBuffer, n * kLine);
  room_ = join({.key = key(),
                .members = n,
                .best_bytes = head_bytes(n) + 2 * n * std::max(kBestBuffer, least),
                .least_bytes = head_bytes(n) + 2 * n * least,
                .settings = world()->options().settings});
  head_ = reinterpret_cast<Head*>(room_.base);
  slots_ = reinterpret_cast<Slot*>(room_.base + sizeof(Head));
  buffers_ = room_.base + head_bytes(n);
  buffer_bytes_ = rounded_down((room_.bytes - head_bytes(n)) / (2 * n), 2 * kLine);
}

SharedGroup::~SharedGroup() { world()->leave(room_.group); }

std::byte* SharedGroup::buffer(int member, std::uint64_t phase) const {
  return buffers_ + (2 * member + static_cast<int>(phase % 2)) * buffer_bytes_;
}

// ---- barriers and matching ----

void SharedGroup::announce(const SharedCall& call) {
  current_ = call;
  slot(me()).status.write(call);
  if (world()->shared().failed()) throw_failed();
}

void SharedGroup::begin(const Call& call) {
  const SharedCall shared(call, sequence_ + 1);
  announce(shared);
  slot(me()).calls[++sequence_ % 2] = shared;
  first_exchange_ = true;
}

template <class Done, class IsMissing>
void SharedGroup::wait(SharedSignal& signal, nanoseconds deadline, const Done& done,
                       const IsMissing& missing) {
  SharedWorld& shared = world()->shared();
  const auto peer_ended = [&] {
    for (int member = 0; member < members(); ++member)
      if (shared.ended(global_rank(member)) && missing(member)) return true;
    return false;
  };
  const auto ready = [&] { return done() || shared.failed() || (shared.any_ended() && peer_ended()); };
  const bool in_time = signal.wait(world()->policy(), deadline, ready, [&] { world()->look_around(); });
  if (done()) return;
  if (shared.failed()) throw_failed();
  throw_missing(in_time ? nanoseconds::zero() : deadline, missing);
}

void SharedGroup::barrier(nanoseconds deadline) {
  ++phase_;
  const std::uint64_t target = phase_ * static_cast<std::uint64_t>(members());
  // Read where a member has ended, which orders it, and in reports.
  slot(me()).phase.store(phase_, std::memory_order_relaxed);
  if (head_->arrivals.fetch_add(1) + 1 == target) return head_->signal.notify();
  wait(
      head_->signal, deadline, [&] { return head_->arrivals.load() >= target; },
      [&](int member) { return slot(member).phase.load() < phase_; });
}

void SharedGroup::exchange(const Traffic&, nanoseconds deadline) {
  barrier(deadline);
  if (!first_exchange_) return;
  first_exchange_ = false;
  const auto call_of = [&](int member) { return slot(member).calls[sequence_ % 2]; };
  for (int member = 0; member < members(); ++member) check_match(call_of(me()), call_of(member), member);
}

// ---- reading peers' memory ----

// Mostly in the arenas of the collective before, which need no lock as long as they are registered.
std::shared_ptr<const MappedArenas> SharedGroup::find(const void* source) {
  std::shared_ptr<const MappedArenas> arenas = found_.lock();
  if (arenas && arenas->offset_of(source) >= 0) return arenas;
  arenas = world()->arenas()->find(source);
  found_ = arenas;
  return arenas;
}

Puller* SharedGroup::open(const void* source, std::int64_t bytes, nanoseconds deadline) {
  if (bytes < kPullBytes) return nullptr;
  const auto place_of = [&](int member) -> ArenaPlace& { return slot(member).sources[sequence_ % 2]; };
  ArenaPlace& own = place_of(me());
  open_ = find(source);
  own = open_ ? ArenaPlace{.arenas = open_->key(), .offset = open_->offset_of(source)} : ArenaPlace();
  exchange({}, deadline);
  for (int member = 0; open_ && member < members(); ++member) {
    const ArenaPlace& place = place_of(member);
    if (!(place.arenas == own.arenas)) {
      open_ = nullptr;
      break;
    }
    read_from_[member] = open_->address(global_rank(member), place.offset);
  }
  deadline_ = deadline;
  return open_ ? this : nullptr;
}

void SharedGroup::close(nanoseconds deadline) {
  open_ = nullptr;
  barrier(deadline);
}

void SharedGroup::start_reading() {
  slot(me()).reading.store(true);
  if (!world()->shared().failed()) return;
  stop_reading();
  throw_failed();
}

void SharedGroup::abandon(nanoseconds deadline) noexcept {
  open_ = nullptr;
  // Every way here has marked the world failed, so no peer begins to read.
  device::Patience patience(deadline);
  for (int member = 0; member < members(); ++member)
    while (member != me() && slot(member).reading.load() && !world()->shared().ended(global_rank(member)) &&
           !patience.over()) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      world()->look_around();  // one that was killed reads no more
    }
}

// ---- messages ----

// A message goes through the sender's free buffer, in pieces of half of it, of which two are on their way.
std::int64_t SharedGroup::pieces_of(std::int64_t bytes) const {
  return std::max<std::int64_t>(1, (bytes + piece_bytes() - 1) / piece_bytes());
}

std::byte* SharedGroup::piece(int from, std::int64_t index) const {
  return buffer(from, slot(from).message_buffer) + index % 2 * piece_bytes();
}

void SharedGroup::send(int to, const Call& call, const void* source, nanoseconds deadline) {
  const SharedCall shared(call, ++sent_to_[to]);
  announce(shared);
  Slot& own = slot(me());
  const auto in_flight_at_most = [&](std::uint64_t pieces) {
    const auto few = [&] { return own.posted.load().pieces - own.taken.load() <= pieces; };
    wait(own.signal, deadline, few, [&](int member) { return member == to && !few(); });
  };
  own.message = shared;
  own.message_buffer = phase_ + 1;
  for (std::int64_t index = 0; index < pieces_of(call.count); ++index) {
    const std::int64_t begin = index * piece_bytes();
    in_flight_at_most(1);
    kernels::copy(piece(me(), index), static_cast<const char*>(source) + begin,
                  std::min(piece_bytes(), call.count - begin));
    own.posted.store({.to = static_cast<std::uint64_t>(to), .pieces = own.posted.load().pieces + 1});
    own.signal.notify();
  }
  in_flight_at_most(0);
}

void SharedGroup::recv(int from, const Call& call, void* target, nanoseconds deadline) {
  const SharedCall shared(call, ++taken_from_[from]);
  announce(shared);
  Slot& way = slot(from);
  const auto posted = [&] {
    const Posted last = way.posted.load();
    return last.to == static_cast<std::uint64_t>(me()) && last.pieces > way.taken.load();
  };
  for (std::int64_t index = 0; index < pieces_of(call.count); ++index) {
    wait(way.signal, deadline, posted, [&](int member) { return member == from && !posted(); });
    if (index == 0) check_message(shared, way.message, from);
    const std::int64_t begin = index * piece_bytes();
    kernels::copy(static_cast<char*>(target) + begin, piece(from, index),
                  std::min(piece_bytes(), call.count - begin));
    way.taken.fetch_add(1);
    way.signal.notify();
  }
}

// ---- errors ----

std::string SharedGroup::status_text(int member) const {
  const std::optional<SharedCall> status = slot(member).status.read();
  return status ? status->status_text() : "was stopped as it began a call";
}

std::string SharedGroup::current() const {
  return fmt::format("{} on '{}'", current_.local().text(current_.sequence), name());
}

}  // namespace tessera::comm
