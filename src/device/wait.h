// How one thread waits for what another stores: spin, yield, then sleep in a futex, with a time limit.
// Owns no state of its users: they store it (sequentially consistent atomics) and then call notify().
#pragma once

#include <sched.h>

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

  // Returns true once ready() does, false when `timeout` has passed. ready() must not throw. A wait with a
  // limit also looks again every few milliseconds, so ready() may test what is stored without a notify().
  template <class Ready>
  bool wait(const WaitPolicy& policy, std::chrono::nanoseconds timeout, const Ready& ready) {
    for (int i = 0; i < policy.spins; ++i) {
      if (ready()) return true;
      hwy::Pause();
    }
    if (policy.yields > 0 && yield_until(policy, ready)) return true;
    Sleeper sleeper(*this, timeout);
    for (;;) {
      const std::uint32_t epoch = epoch_.load();  // before looking: a notify() after this ends the sleep
      if (ready()) return true;
      if (!sleeper.sleep(epoch)) return false;
    }
  }

 private:
  // On busy cores every yield may cost other threads' time slices, so that few of them are already long.
  static constexpr std::chrono::microseconds kYieldFor{50};

  template <class Ready>
  bool yield_until(const WaitPolicy& policy, const Ready& ready) {
    const Clock::time_point end = Clock::now() + kYieldFor;
    for (int i = 0; i < policy.yields && (i == 0 || Clock::now() < end); ++i) {
      if (ready()) return true;
      sched_yield();
    }
    return false;
  }

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
    Clock::time_point deadline_;
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
