// What processes of one host share in one range of memory: waits, words that one writes and others read, who
// failed first, who has ended, and room for groups. Any of the processes may be stopped or killed anywhere:
// nothing here waits for another without an end. Knows nothing of collectives.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "src/comm/blame.h"
#include "src/device/wait.h"

namespace tessera::comm {

// The namespace that this process's number is of; 0 where the system does not tell.
std::uint64_t pid_namespace();

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

// What one thread writes and others read at any time, without waiting for each other: who reads while it is
// written reads again, a while long.
template <class T>
class Published {
  static_assert(std::is_trivially_copyable_v<T> && std::is_default_constructible_v<T>);

 public:
  void write(const T& value) noexcept {
    Words words{};
    std::memcpy(words.data(), &value, sizeof value);
    const std::uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    // Who reads one of these finds the version no older than that.
    for (std::size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }

  // T() before the first write; nothing where a writer began and does not go on.
  std::optional<T> read() const noexcept {
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const std::uint64_t before = version_.load(std::memory_order_acquire);
      if (before == 0) return T();
      Words words{};
      for (std::size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
      if (before % 2 == 0 && version_.load(std::memory_order_relaxed) == before) {
        T value;
        std::memcpy(static_cast<void*>(&value), words.data(), sizeof value);
        return value;
      }
      std::this_thread::sleep_for(kBetweenAttempts);
    }
    return std::nullopt;
  }

 private:
  static constexpr int kAttempts = 100;
  static constexpr std::chrono::microseconds kBetweenAttempts{200};
  static constexpr std::size_t kWords = (sizeof(T) + 7) / 8;
  using Words = std::array<std::uint64_t, kWords>;

  std::atomic<std::uint64_t> version_{0};  // odd: it is being written
  std::array<std::atomic<std::uint64_t>, kWords> words_{};
};

// A mutex that is not waited for without an end where its owner was stopped. Where one was killed, what it
// guards may be half-written: it is lost, and nobody gets it any more.
class SharedMutex {
 public:
  SharedMutex();
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;
  bool try_lock_for(std::chrono::nanoseconds limit, int rank);
  void unlock();
  bool lost() const noexcept { return lost_.load(); }
  // Of a lost one, who died with it; -1 where that one had not said so yet.
  int owner() const noexcept { return owner_.load(); }

 private:
  pthread_mutex_t mutex_;
  std::atomic<int> owner_{-1};
  std::atomic<bool> lost_{false};
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

  // The first failure stays, and false is returned for others; the world has failed for good. Waits for
  // nobody.
  bool fail(int reporter, int culprit, const std::string& message);
  bool failed() const noexcept { return first_failure_.load() >= 0; }
  SharedFailure failure() const;  // of a world that has failed

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
  // Notes ranks whose process is gone without having said so, as ended, and the world as failed. Returns
  // whether that is the world's first failure. Processes of another PID namespace than that of `self` cannot
  // be seen.
  bool look_for_dead(int self);

  // Room for the group `key`, the same for each of its members, who all ask for the same. Zero where taken
  // for the first one asking, who then makes `initialize` run before any other member sees it.
  // EnvironmentError where there is no room left, another process holds the table for longer than `limit`, or
  // one died with it: look_for_dead() then knows which, at once or when it is gone.
  struct Room {
    std::byte* base = nullptr;
    std::int64_t bytes = 0;
    int group = -1;
  };
  struct RoomWanted {
    GroupKey key;
    int members = 0;
    std::int64_t best_bytes = 0, least_bytes = 0;  // as much as is fair, halved until it fits
    const char* settings = "options";              // whose shared_bytes give the room, for messages
  };
  template <class Initialize>
  Room join(int rank, const RoomWanted& wanted, std::chrono::nanoseconds limit,
            const Initialize& initialize) {
    lock(rank, limit);
    const std::lock_guard unlock(mutex_, std::adopt_lock);
    bool first = false;
    const Room room = find_or_take(wanted, first);
    if (first) initialize(room);
    return room;
  }
  // A process died as it made or left a group: there will be no other.
  bool lost_table() const noexcept { return mutex_.lost(); }
  // The member touches the room no more; when all have left, it is free. For good it is not where this
  // returns false: another process holds the table for longer than `limit`, or died with it.
  bool leave(int rank, int group, std::chrono::nanoseconds limit) noexcept;

 private:
  struct alignas(64) Rank {
    std::atomic<bool> ended{false};
    std::atomic<RankState> state{RankState::unknown};
    std::atomic<int> process{0};
    std::atomic<std::uint64_t> pid_namespace{0};  // 0: not known
    std::atomic<std::int64_t> shown_ms{0};        // by a clock that all processes of a host have
  };
  struct Group {
    GroupKey key;
    int members = 0;  // 0: not in use
    int joined = 0, left = 0;
    std::int64_t first_block = 0, blocks = 0;
  };

  static constexpr std::size_t kFailures = 16;  // that may be written at a time, before the first one stands

  void lock(int rank, std::chrono::nanoseconds limit);
  bool died_with_table(int rank) const noexcept { return mutex_.lost() && mutex_.owner() == rank; }
  bool sees_dead(int self, int rank) const;
  Rank& entry(int rank) const;
  std::byte* block(std::int64_t index);
  Room find_or_take(const RoomWanted& wanted, bool& first);
  std::optional<std::int64_t> gap_of(std::int64_t blocks) const;
  Room room_of(int group);

  const int ranks_;
  std::int64_t blocks_ = 0;
  std::atomic<int> first_failure_{-1};
  std::atomic<std::size_t> failures_begun_{0};
  std::array<SharedFailure, kFailures> failures_{};
  std::atomic<int> ended_count_{0};
  SharedMutex mutex_;  // guards what follows
  std::array<Group, kGroups> groups_{};
};

}  // namespace tessera::comm
