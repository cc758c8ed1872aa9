// What takes the place of the machine's clock, sleeps and threads in tests. A simulator runs all threads of a
// world as fibers of one thread, on a clock of its own: a run of several ranks is then one sequence of draws,
// which comes again. Outside of such tests there is none, and everything is the machine's.
//
// Threads of a simulated world come here through Clock, Signal, pause_for() (wait.h) and Thread (thread.h). A
// mutex must not be held across any of these: the fiber that goes on might want it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace tessera::device {

class Activity;

class Simulator {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  virtual ~Simulator() = default;

  virtual TimePoint now() noexcept = 0;
  // Another thread may go on.
  virtual void yield() = 0;
  // Until wake() of this word, whose address is all that counts, or until `limit` has passed. Returns whether
  // it was woken. No other thread goes on before this one sleeps.
  virtual bool sleep(const void* word, std::chrono::nanoseconds limit) = 0;
  virtual void wake(const void* word) noexcept = 0;
  // Something has failed or ended, which every wait looks at.
  virtual void wake_all() noexcept = 0;
  // What a thread waited for was there, and nobody had woken it. On the machine it would have slept on, for
  // up to 10 ms or for ever.
  virtual void note_lost_wake() noexcept = 0;

  class Fiber {
   public:
    virtual ~Fiber() = default;
    virtual bool ended() const noexcept = 0;
  };
  virtual std::shared_ptr<Fiber> start(std::string name, std::function<void()> body) = 0;
  virtual void join(const Fiber& fiber) = 0;
};

// What a thread is in the midst of. A simulator exchanges it when another fiber goes on.
struct ThreadState {
  const Activity* innermost = nullptr;  // see activity.h
  bool serves_stream = false;           // see serves_stream()
};

namespace of_this_thread {
inline thread_local constinit Simulator* simulator = nullptr;
inline thread_local constinit ThreadState state;
}  // namespace of_this_thread

// That of the calling thread; null where there is none.
inline Simulator* simulator() noexcept { return of_this_thread::simulator; }
inline void set_simulator(Simulator* simulator) noexcept { of_this_thread::simulator = simulator; }
inline ThreadState& thread_state() noexcept { return of_this_thread::state; }

}  // namespace tessera::device
