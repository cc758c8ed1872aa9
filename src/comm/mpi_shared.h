// What processes of one host share in one range of memory: waits, a mutex, who failed first, who has ended,
// and room for groups. Knows nothing of collectives or of MPI.
#pragma once

#include <pthread.h>

#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "src/comm/blame.h"
#include "src/device/wait.h"

namespace tessera::comm {

// device::Signal for waiters in several processes: the futex is not private, and nothing but the range that
// it lies in is owned.
class SharedSignal {
 public:
  void notify() noexcept {
    if (sleepers_.load() != 0) wake();
  }

  // Returns true once ready() does, false when `timeout` has passed. Looks again every few milliseconds, and
  // then calls idle() too, which may look for what nobody notifies of.
  template <class Ready, class Idle>
  bool wait(const device::WaitPolicy& policy, std::chrono::nanoseconds timeout, const Ready& ready,
            const Idle& idle) {
    if (device::is_soon(policy, ready)) return true;
    device::Patience patience(timeout);
    sleepers_.fetch_add(1);
    bool is_ready = false;
    for (int slice = 0;; ++slice) {
      const std::uint32_t epoch = epoch_.load();  // before looking: a notify() after this ends the sleep
      is_ready = ready();
      if (is_ready || !sleep(epoch, patience, slice)) break;
      idle();
    }
    sleepers_.fetch_sub(1);
    return is_ready;
  }

 private:
  void wake() noexcept;
  bool sleep(std::uint32_t epoch, device::Patience& patience, int slice);  // false: the time has passed

  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<std::uint32_t> sleepers_{0};  // one too many for each process that died asleep: a wasted wake
};

// A mutex that outlives an owner who was killed.
class SharedMutex {
 public:
  SharedMutex();
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;
  void lock();
  void unlock() { pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t mutex_;
};

// `reporter` said so of `culprit`, which is the same rank, another, or -1 where not known.
struct SharedFailure {
  int reporter = -1;
  int culprit = -1;
  std::array<char, 2000> message{};  // cut where longer
};

// Names a group on all processes without asking any of them: made from its parent's key and the arguments of
// the call.
struct GroupKey {
  std::uint64_t low = 0, high = 0;
  bool operator==(const GroupKey&) const = default;
};

// The beginning of the shared range; blocks for groups follow. Constructed by one process, before the others
// see it.
class alignas(64) SharedWorld {
 public:
  static constexpr std::int64_t kBlockBytes = 16 * 1024;
  static constexpr int kGroups = 512;  // alive at a time

  // Bytes of a range for `ranks` ranks with `room_bytes` for groups.
  static std::int64_t range_bytes(int ranks, std::int64_t room_bytes);
  SharedWorld(int ranks, std::int64_t range_bytes);
  SharedWorld(const SharedWorld&) = delete;
  SharedWorld& operator=(const SharedWorld&) = delete;

  // The first failure stays, and false is returned for others; the world has failed for good.
  bool fail(int reporter, int culprit, const std::string& message);
  bool failed() const noexcept { return failed_.load(); }
  SharedFailure failure();

  // Each rank, before any call: the process that it is.
  void enter(int rank);
  // A rank that has ended makes no further calls. any_ended() is cheap.
  void end(int rank);
  bool ended(int rank) const noexcept { return entry(rank).ended.load(); }
  bool any_ended() const noexcept { return ended_count_.load() > 0; }
  // Of ranks on this host; `unknown` for others. One that said that it waits, and has not shown itself for a
  // while, does not: its process was stopped, or it waits for what it does itself.
  void set_state(int rank, RankState state) noexcept;
  RankState state(int rank) const noexcept;
  // Of a rank, now and then while a thread of its process waits for peers.
  void show(int rank) noexcept;
  // After all have entered: where processes cannot see each other (several PID namespaces), nobody looks for
  // dead ones.
  void check_visible();
  // Notes ranks whose process is gone without having said so, as ended, and the world as failed. Returns
  // whether that is the world's first failure.
  bool look_for_dead(int self);

  // Room for the group `key`, the same for each of its members, who all ask for the same. Zero where taken
  // for the first one asking, who then makes `initialize` run before any other member sees it.
  // EnvironmentError where there is no room left.
  struct Room {
    std::byte* base = nullptr;
    std::int64_t bytes = 0;
    int group = -1;
  };
  struct RoomWanted {
    GroupKey key;
    int members = 0;
    std::int64_t best_bytes = 0, least_bytes = 0;  // as much as is fair, halved until it fits
  };
  template <class Initialize>
  Room join(const RoomWanted& wanted, const Initialize& initialize) {
    const std::lock_guard lock(mutex_);
    bool first = false;
    const Room room = find_or_take(wanted, first);
    if (first) initialize(room);
    return room;
  }
  // The member touches the room no more; when all have left, it is free.
  void leave(int group);

 private:
  struct alignas(64) Rank {
    std::atomic<bool> ended{false};
    std::atomic<RankState> state{RankState::unknown};
    std::atomic<int> process{0};
    std::atomic<std::int64_t> shown_ms{0};  // by a clock that all processes of a host have
  };
  struct Group {
    GroupKey key;
    int members = 0;  // 0: not in use
    int joined = 0, left = 0;
    std::int64_t first_block = 0, blocks = 0;
  };

  Rank& entry(int rank) const;
  std::byte* block(std::int64_t index);
  Room find_or_take(const RoomWanted& wanted, bool& first);
  std::optional<std::int64_t> gap_of(std::int64_t blocks) const;
  Room room_of(int group);

  const int ranks_;
  std::int64_t blocks_ = 0;
  std::atomic<bool> failed_{false};
  std::atomic<int> ended_count_{0};
  std::atomic<bool> visible_{true};
  SharedMutex mutex_;  // guards what follows
  SharedFailure failure_;
  std::array<Group, kGroups> groups_{};
};

}  // namespace tessera::comm
