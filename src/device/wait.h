// How a thread waits for a value that another thread stores: spin, yield, then sleep in a futex, with a time
// limit. The users own the values: they store them in sequentially consistent atomics and then call notify().
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>

#include "hwy/cache_control.h"
#include "src/device/simulator.h"
#include "tessera/device.h"

namespace tessera::device {

// The machine's steady clock or, in a simulated world, that world's.
struct Clock {
  using duration = std::chrono::steady_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::steady_clock::time_point;
  static constexpr bool is_steady = true;

  static time_point now() noexcept {
    Simulator* const simulated = simulator();
    return simulated == nullptr ? std::chrono::steady_clock::now() : simulated->now();
  }
};

struct WaitPolicy {
  int spins = 0;   // checks with a pause instruction between them
  int yields = 0;  // checks with sched_yield between them, for at most 50 µs; then the thread sleeps

  // `busy_threads` is the number of threads that are busy at the same time; 0: not known.
  static WaitPolicy choose(Waiting waiting, int busy_threads);
};

// Whether other programs compete for the cores. Then many of this process's yields last as long as a time
// slice, and its threads should sleep instead, because the kernel prefers a thread that wakes to one that
// yielded. The duration of yields tells, and is measured again now and then.
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

  static constexpr int kLate = 8;  // this many prompt yields offset a late one; a single wait makes more than
                                   // this
  static constexpr int kThere = 3 * kLate;
  static constexpr int kMost = 4 * kLate;
  static constexpr std::chrono::microseconds kSlice{300};
  static constexpr std::chrono::milliseconds kAskAgain{250};

 private:
  Clock::time_point until() const {
    return Clock::time_point(Clock::duration(until_.load(std::memory_order_relaxed)));
  }

  std::atomic<int> score_{0};  // threads may overwrite each other's updates, so this is an estimate
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
  // Each yield may cost a time slice, so a few of them already take long.
  static constexpr std::chrono::microseconds kLongest{50};

  int left_;
  Clock::duration taken_{0};
};

// Checks ready() for a while, before the thread sleeps. Returns whether it became true.
template <class Ready>
bool is_soon(const WaitPolicy& policy, const Ready& ready) {
  if (Simulator* const simulated = simulator()) {
    simulated->yield();
    return ready();
  }
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

// The time left of a wait with a limit. A period in which the process did not run, for example because it was
// suspended, counts little: if it waits for one of its own threads, that one did not run either.
class Patience {
 public:
  static constexpr std::chrono::seconds kMostAtOnce{1};

  explicit Patience(std::chrono::nanoseconds limit) : left_(limit) {}
  // 0 or less if the time is over. Call it every few milliseconds.
  std::chrono::nanoseconds left() {
    const Clock::time_point now = Clock::now();
    left_ -= std::min<std::chrono::nanoseconds>(now - looked_, kMostAtOnce);
    looked_ = now;
    return left_;
  }
  bool over() { return left() <= std::chrono::nanoseconds::zero(); }

 private:
  std::chrono::nanoseconds left_;
  Clock::time_point looked_ = Clock::now();
};

// The pauses of a wait that nobody ends by notify(), such as one for a GPU. The first ones yield, because
// most of these waits are short; from 200 µs on they sleep for `sleep`.
class Pauses {
 public:
  explicit Pauses(std::chrono::microseconds sleep) : sleep_(sleep) {}
  void pause() const;

 private:
  const std::chrono::microseconds sleep_;
  const Clock::time_point begin_ = Clock::now();
};

// No limit: nothing but notify() ends the wait.
inline constexpr std::chrono::nanoseconds kForever = std::chrono::nanoseconds::max();

// A caller's deadline, limited to a year, so that sums with the current time stay within the clock's range.
// Throws UsageError, which calls it `name`, unless it is above 0.
std::chrono::milliseconds checked_deadline(std::chrono::milliseconds deadline, std::string_view name);

class Signal {
 public:
  // Wakes every waiter, which then checks again. Costs one load while nobody sleeps.
  void notify() noexcept {
    if (sleepers_.load() != 0) wake();
  }

  // Returns true once ready() does, or false when `timeout` has passed (see Patience). ready() must not
  // throw. A wait with a limit also checks every few milliseconds, so ready() may test values that are stored
  // without a notify().
  template <class Ready>
  bool wait(const WaitPolicy& policy, std::chrono::nanoseconds timeout, const Ready& ready) {
    if (is_soon(policy, ready)) return true;
    Sleeper sleeper(*this, timeout);
    for (;;) {
      const std::uint32_t epoch = epoch_.load();  // read before the check: a notify() after this ends the
                                                  // sleep
      if (ready()) {
        sleeper.note_why();
        return true;
      }
      if (!sleeper.sleep(epoch)) return false;
    }
  }

 private:
  // The object counts as a sleeper while it lives.
  class Sleeper {
   public:
    Sleeper(Signal& signal, std::chrono::nanoseconds timeout);
    ~Sleeper() { signal_.sleepers_.fetch_sub(1); }
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;
    bool sleep(std::uint32_t epoch);  // false if the time has passed
    void note_why() const noexcept {
      if (overslept_) simulator()->note_lost_wake();
    }

   private:
    bool sleep_simulated(Simulator& simulated, std::uint32_t epoch);

    Signal& signal_;
    bool overslept_ = false;  // in a simulated world: nobody had woken it when the time had passed
    Patience patience_;
    std::chrono::nanoseconds slice_;
  };

  void wake() noexcept;

  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

// Sleeps, between looks at what nobody tells of.
void pause_for(std::chrono::nanoseconds time);
// Something has failed or ended that waits look at, each few milliseconds: in a simulated world, where they
// sleep until they are woken, they do so now.
inline void wake_all() noexcept {
  if (Simulator* const simulated = simulator()) simulated->wake_all();
}

// Delays for tests. Sleeps until shortly before the time, then yields until it, so that it ends within
// microseconds of the time if a core is free. A time of 0 or less returns at once.
void sleep_until_exactly(Clock::time_point time);
inline void sleep_exactly(std::chrono::nanoseconds time) {
  if (time.count() > 0) sleep_until_exactly(Clock::now() + time);
}

}  // namespace tessera::device
