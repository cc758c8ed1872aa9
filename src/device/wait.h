// How one thread waits for what another stores: spin, yield, then sleep in a futex, with a time limit.
// Owns no state of its users: they store it (sequentially consistent atomics) and then call notify().
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>

#include "hwy/cache_control.h"
#include "tessera/device.h"

namespace tessera::device {

using Clock = std::chrono::steady_clock;

struct WaitPolicy {
  int spins = 0;   // looks with a pause instruction between them
  int yields = 0;  // looks with sched_yield between them, for 50 µs at most; then the thread sleeps

  // `busy_threads` counts those that are busy at the same time; 0 means not known.
  static WaitPolicy choose(Waiting waiting, int busy_threads);
};

// Whether others have work for the cores: of a process's yields many then last as long as time slices do, and
// its threads do better to sleep, since the kernel gives a core to who wakes before who yielded. Found out by
// yielding, and again now and then.
class Crowd {
 public:
  static Crowd& of_process();

  bool is_there() const { return score_.load(std::memory_order_relaxed) >= kThere && Clock::now() < until(); }
  void yielded(Clock::time_point from, Clock::time_point to) {
    const int score = score_.load(std::memory_order_relaxed);
    if (to - from >= kSlice) {
      until_.store((to + kAskAgain).time_since_epoch().count(), std::memory_order_relaxed);
      score_.store(std::min(score + kLate, kMost), std::memory_order_relaxed);
    } else if (score > 0) {
      score_.store(score - 1, std::memory_order_relaxed);
    }
  }

  static constexpr int kLate = 8;  // prompt yields that weigh as much as a late one: a wait alone makes more
  static constexpr int kThere = 3 * kLate;
  static constexpr int kMost = 4 * kLate;
  static constexpr std::chrono::microseconds kSlice{300};
  static constexpr std::chrono::milliseconds kAskAgain{250};

 private:
  Clock::time_point until() const {
    return Clock::time_point(Clock::duration(until_.load(std::memory_order_relaxed)));
  }

  std::atomic<int> score_{0};  // of threads that may take a yield from each other: it is an estimate
  std::atomic<Clock::rep> until_{0};
};

// The yields of one wait, before it sleeps.
class Yields {
 public:
  explicit Yields(const WaitPolicy& policy) : left_(Crowd::of_process().is_there() ? 0 : policy.yields) {}
  // Yields, unless the thread should sleep by now.
  bool yield() {
    if (left_ == 0) return false;
    const Clock::time_point from = Clock::now();
    sched_yield();
    const Clock::time_point to = Clock::now();
    Crowd::of_process().yielded(from, to);
    taken_ += to - from;
    left_ = taken_ < kLongest ? left_ - 1 : 0;
    return true;
  }

 private:
  // Each may cost a time slice, so that few of them are already long.
  static constexpr std::chrono::microseconds kLongest{50};

  int left_;
  Clock::duration taken_{0};
};

// Looks before a thread sleeps. Returns whether ready() did.
template <class Ready>
bool is_soon(const WaitPolicy& policy, const Ready& ready) {
  if (ready()) return true;
  if (Crowd::of_process().is_there()) return false;
  for (int i = 1; i < policy.spins; ++i) {
    hwy::Pause();
    if (ready()) return true;
  }
  for (Yields yields(policy); yields.yield();)
    if (ready()) return true;
  return false;
}

// What is left of a wait with a limit. A stretch in which the process did not run, as one that was suspended
// with all its threads, counts little: what it waits for, if that is one of its threads, did not run either.
class Patience {
 public:
  explicit Patience(std::chrono::nanoseconds limit) : left_(limit) {}
  // 0 or less where it is over. To be asked every few milliseconds.
  std::chrono::nanoseconds left() {
    const Clock::time_point now = Clock::now();
    left_ -= std::min<std::chrono::nanoseconds>(now - looked_, kMostAtOnce);
    looked_ = now;
    return left_;
  }
  bool over() { return left() <= std::chrono::nanoseconds::zero(); }

 private:
  static constexpr std::chrono::seconds kMostAtOnce{1};

  std::chrono::nanoseconds left_;
  Clock::time_point looked_ = Clock::now();
};

// No limit: nothing but notify() ends the wait.
inline constexpr std::chrono::nanoseconds kForever = std::chrono::nanoseconds::max();

// A caller's deadline as waits take it: at most a year, so that its sum with the time, and a few of them,
// stay within the clock's range. UsageError, naming it `name`, where it is not above 0.
std::chrono::milliseconds checked_deadline(std::chrono::milliseconds deadline, std::string_view name);

class Signal {
 public:
  // Wakes every waiter, to look again. Costs one load while nobody sleeps.
  void notify() noexcept {
    if (sleepers_.load() != 0) wake();
  }

  // Returns true once ready() does, false when `timeout` has passed, see Patience. ready() must not throw. A
  // wait with a limit also looks again every few milliseconds, so ready() may test what is stored without a
  // notify().
  template <class Ready>
  bool wait(const WaitPolicy& policy, std::chrono::nanoseconds timeout, const Ready& ready) {
    if (is_soon(policy, ready)) return true;
    Sleeper sleeper(*this, timeout);
    for (;;) {
      const std::uint32_t epoch = epoch_.load();  // before looking: a notify() after this ends the sleep
      if (ready()) return true;
      if (!sleeper.sleep(epoch)) return false;
    }
  }

 private:
  // Counted among the sleepers while it lives.
  class Sleeper {
   public:
    Sleeper(Signal& signal, std::chrono::nanoseconds timeout);
    ~Sleeper() { signal_.sleepers_.fetch_sub(1); }
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;
    bool sleep(std::uint32_t epoch);  // false if the time has passed

   private:
    Signal& signal_;
    Patience patience_;
    std::chrono::nanoseconds slice_;
  };

  void wake() noexcept;

  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

// Delays for tests: sleeps until shortly before the time and yields until it, so that it ends within
// microseconds of it where a core is free. 0 or less: at once.
void sleep_until_exactly(Clock::time_point time);
inline void sleep_exactly(std::chrono::nanoseconds time) {
  if (time.count() > 0) sleep_until_exactly(Clock::now() + time);
}

}  // namespace tessera::device
