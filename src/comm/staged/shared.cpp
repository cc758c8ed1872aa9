#include "src/comm/staged/shared.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>
#include <new>

#include "src/device/time_text.h"
#include "tessera/error.h"
#include "tessera/shape.h"

namespace tessera::comm {
namespace {

using std::chrono::nanoseconds;

constexpr int kFairShare = 16;  // a group takes no more than this part of what is free, if it can do with it
constexpr int kSlices = 4;      // sleeps of 1, 2, 4, then 8 ms
constexpr std::chrono::microseconds kBetweenLooks{50};
constexpr std::int64_t kSilenceMs = 500;  // who waits looks every 8 ms

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(device::Clock::now().time_since_epoch())
      .count();
}

std::int64_t blocks_of(std::int64_t bytes) {
  return round_up(bytes, SharedWorld::kBlockBytes) / SharedWorld::kBlockBytes;
}

bool is_gone(int process) { return kill(process, 0) != 0 && errno == ESRCH; }

}  // namespace

std::uint64_t pid_namespace() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

// ---- waits ----

bool SharedSignal::sleep(std::uint32_t epoch, device::Patience& patience, int slice) {
  const nanoseconds left = patience.left();
  if (left <= nanoseconds::zero()) return false;
  const nanoseconds longest = std::chrono::milliseconds(1 << std::min(slice, kSlices - 1));
  const auto limit = std::min(left, longest);
  timespec time{};
  time.tv_nsec = static_cast<long>(limit.count());
  // Every way to return (woken, word changed, time passed, interrupted) makes the caller look again.
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&epoch_), FUTEX_WAIT, epoch, &time, nullptr, 0);
  return true;
}

void SharedSignal::wake() noexcept {
  epoch_.fetch_add(1);
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&epoch_), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

SharedMutex::SharedMutex() {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&mutex_, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

// By looks, not asleep in the mutex: who is killed as it gives that back may have woken nobody.
bool SharedMutex::try_lock_for(nanoseconds limit, int rank) {
  device::Patience patience(limit);
  int result = EBUSY;
  while (!lost() && (result = pthread_mutex_trylock(&mutex_)) == EBUSY && !patience.over())
    std::this_thread::sleep_for(kBetweenLooks);
  // Before anybody finds it free: glibc says ENOTRECOVERABLE once, and then EBUSY.
  if (result == EOWNERDEAD || result == ENOTRECOVERABLE) lost_.store(true);
  if (result == EOWNERDEAD) pthread_mutex_unlock(&mutex_);  // not made consistent
  if (result == 0) owner_.store(rank);
  return result == 0;
}

void SharedMutex::unlock() {
  owner_.store(-1);
  pthread_mutex_unlock(&mutex_);
}

// ---- the world ----

std::int64_t SharedWorld::range_bytes(int ranks, std::int64_t room_bytes) {
  const std::int64_t head = static_cast<std::int64_t>(sizeof(SharedWorld)) + ranks * 64;
  static_assert(sizeof(Rank) == 64);
  return round_up(head, kBlockBytes) + round_up(room_bytes, kBlockBytes);
}

SharedWorld::SharedWorld(int ranks, std::int64_t range_bytes) : ranks_(ranks) {
  for (int rank = 0; rank < ranks; ++rank) new (&entry(rank)) Rank;
  blocks_ = range_bytes / kBlockBytes - SharedWorld::range_bytes(ranks, 0) / kBlockBytes;
}

SharedWorld::Rank& SharedWorld::entry(int rank) const {
  auto* const end = const_cast<SharedWorld*>(this) + 1;  // the ranks follow this object
  static_assert(sizeof(SharedWorld) % alignof(Rank) == 0);
  return reinterpret_cast<Rank*>(end)[rank];
}

void SharedWorld::set_state(int rank, RankState state) noexcept {
  show(rank);
  entry(rank).state.store(state);
}

RankState SharedWorld::state(int rank) const noexcept {
  const RankState said = entry(rank).state.load();
  const bool silent = now_ms() - entry(rank).shown_ms.load() > kSilenceMs;
  return said == RankState::waiting && silent ? RankState::working : said;
}

void SharedWorld::show(int rank) noexcept { entry(rank).shown_ms.store(now_ms()); }

std::byte* SharedWorld::block(std::int64_t index) {
  return reinterpret_cast<std::byte*>(this) + range_bytes(ranks_, 0) + index * kBlockBytes;
}

bool SharedWorld::fail(int reporter, int culprit, const std::string& message) {
  if (failed()) return false;
  const std::size_t index = failures_begun_.fetch_add(1);
  if (index >= kFailures) return false;  // so many others are about to say so
  SharedFailure& failure = failures_[index];
  failure.reporter = reporter;
  failure.culprit = culprit;
  message.copy(failure.message.data(), failure.message.size() - 1);
  int none = -1;
  return first_failure_.compare_exchange_strong(none, static_cast<int>(index));  // waits look every few ms
}

SharedFailure SharedWorld::failure() const {
  return failures_[static_cast<std::size_t>(first_failure_.load())];
}

void SharedWorld::enter(int rank) {
  entry(rank).pid_namespace.store(pid_namespace());
  entry(rank).process.store(static_cast<int>(getpid()));  // last: says that it has entered
}

void SharedWorld::end(int rank) {
  if (!entry(rank).ended.exchange(true)) ended_count_.fetch_add(1);
}

bool SharedWorld::sees_dead(int self, int rank) const {
  const int process = entry(rank).process.load();
  const std::uint64_t space = entry(rank).pid_namespace.load();
  return process != 0 && space != 0 && space == entry(self).pid_namespace.load() && is_gone(process);
}

bool SharedWorld::look_for_dead(int self) {
  bool first = false;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == self || ended(rank)) continue;
    const bool with_table = died_with_table(rank);  // known before the system lets go of the process
    if (!with_table && !sees_dead(self, rank)) continue;
    if (!ended(rank))
      first |= fail(self, rank,
                    fmt::format("the process of rank {} is gone{}", rank,
                                with_table ? ": it died as it made or left a communicator" : ""));
    end(rank);
  }
  return first;
}

// ---- room for groups ----

void SharedWorld::lock(int rank, nanoseconds limit) {
  if (mutex_.try_lock_for(limit, rank)) return;
  if (mutex_.lost())
    throw EnvironmentError(
        "no communicator can be made any more: a process of this host died as it made or left one");
  throw EnvironmentError(fmt::format(
      "no communicator could be made within {}: another process of this host is making or leaving "
      "one, and does not go on",
      device::time_text(limit)));
}

SharedWorld::Room SharedWorld::room_of(int group) {
  const Group& taken = groups_[static_cast<std::size_t>(group)];
  return {.base = block(taken.first_block), .bytes = taken.blocks * kBlockBytes, .group = group};
}

std::optional<std::int64_t> SharedWorld::gap_of(std::int64_t blocks) const {
  std::vector<std::pair<std::int64_t, std::int64_t>> used;  // first, one past the last
  for (const Group& group : groups_)
    if (group.members > 0) used.emplace_back(group.first_block, group.first_block + group.blocks);
  std::sort(used.begin(), used.end());
  std::int64_t free = 0;
  for (const auto& [first, end] : used) {
    if (first - free >= blocks) return free;
    free = end;
  }
  return blocks_ - free >= blocks ? std::optional(free) : std::nullopt;
}

SharedWorld::Room SharedWorld::find_or_take(const RoomWanted& wanted, bool& first) {
  int unused = -1;
  for (int index = 0; index < kGroups; ++index) {
    Group& group = groups_[static_cast<std::size_t>(index)];
    if (group.members == 0) {
      if (unused < 0) unused = index;
    } else if (group.key == wanted.key) {
      ++group.joined;
      return room_of(index);
    }
  }
  first = true;
  std::int64_t free = blocks_;
  for (const Group& group : groups_)
    if (group.members > 0) free -= group.blocks;
  const std::int64_t fair_bytes = std::max(wanted.least_bytes, free * kBlockBytes / kFairShare);
  std::int64_t bytes = std::min(wanted.best_bytes, fair_bytes);
  auto gap = gap_of(blocks_of(bytes));
  while (!gap && bytes > wanted.least_bytes) {
    bytes = std::max(bytes / 2, wanted.least_bytes);
    gap = gap_of(blocks_of(bytes));
  }
  if (unused < 0 || !gap)
    throw EnvironmentError(fmt::format(
        "no room for another communicator in the {} KiB that the processes of this host share: raise "
        "{}::shared_bytes, or let go of some communicators",
        blocks_ * kBlockBytes >> 10, wanted.settings));
  groups_[static_cast<std::size_t>(unused)] = {.key = wanted.key,
                                               .members = wanted.members,
                                               .joined = 1,
                                               .first_block = *gap,
                                               .blocks = blocks_of(bytes)};
  return room_of(unused);
}

bool SharedWorld::leave(int rank, int index, nanoseconds limit) noexcept {
  if (!mutex_.try_lock_for(limit, rank)) return false;
  const std::lock_guard unlock(mutex_, std::adopt_lock);
  Group& group = groups_[static_cast<std::size_t>(index)];
  if (++group.left == group.members) group = {};
  return true;
}

}  // namespace tessera::comm
