// A world of ranks on a virtual clock: all their threads are fibers of the calling thread, and a seed draws
// which goes on, what is late, and what fails. Equal seeds give equal runs. Floor: above src/device; knows
// nothing of engines.
//
// A point is where a thread asks for the time, waits, wakes another, sleeps or starts one. Faults happen at
// points.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/device/simulator.h"
#include "tests/simulated/draws.h"
#include "tests/simulated/fibers.h"

namespace tessera::simulated {

enum class Fault : std::uint8_t {
  none,
  jump,   // the clock, ahead, once
  stall,  // a rank, for less than the deadline or for longer
  kill,   // a rank: none of its threads goes on
  power   // all ranks: the same of all, at one time
};

struct Plan {
  Fault fault = Fault::none;
  int process = 0;                   // that stalls or is killed
  std::int64_t at = 0;               // which of its points it is at; of all points, for a jump
  std::chrono::nanoseconds time{0};  // that it stalls or jumps
  std::int64_t switches_one_in = 4;  // points at which another thread goes on; 0: only where one waits
  std::int64_t late_one_in = 0;      // points at which a thread is late
  std::chrono::nanoseconds latest{0};
};

class World final : public device::Simulator {
 public:
  World(std::uint64_t seed, const Plan& plan);
  ~World() override;

  // Adds a rank, whose threads are those that `main` starts. `main` must not throw.
  int add_process(std::string name, std::function<void()> main);
  // Runs until every thread that is not killed has ended, or none of them can go on. Returns "" or what is
  // wrong: threads that wait for ever, by name, or wake-ups that were lost.
  std::string run();
  // Lets threads that were killed go on, so that what they own is given back. `before` is called first. To be
  // called behind run(), when nothing counts any more.
  void bury(const std::function<void()>& before);

  std::chrono::nanoseconds elapsed() const { return now_ - kBegin; }
  // When the plan's fault happened; negative: it did not.
  std::chrono::nanoseconds fault_at() const { return fault_at_; }
  std::int64_t points(int process) const { return processes_[static_cast<std::size_t>(process)].points; }
  // A hash of which thread went on when. Equal seeds have equal ones.
  std::uint64_t schedule() const { return schedule_; }

  // Simulator
  TimePoint now() noexcept override;
  void yield() override;
  bool sleep(const void* word, std::chrono::nanoseconds limit) override;
  void wake(const void* word) noexcept override;
  void wake_all() noexcept override;
  void note_lost_wake() noexcept override;
  std::shared_ptr<Simulator::Fiber> start(std::string name, std::function<void()> body) override;
  void join(const Simulator::Fiber& fiber) override;

 private:
  struct Thread final : Simulator::Fiber, std::enable_shared_from_this<Thread> {
    std::string name;
    int process = 0;
    int number = 0;  // in the order in which they were started
    std::unique_ptr<simulated::Fiber> fiber;
    bool waits = false;  // for `word` or `until`
    const void* word = nullptr;
    TimePoint until{};
    bool woken = false;
    bool told = false;  // wake_all() came since its last yield()
    bool is_over = false;
    bool ended() const noexcept override { return is_over; }
  };
  struct Process {
    std::string name;
    bool killed = false;
    TimePoint stalls_until{};
    std::int64_t points = 0;
  };
  static constexpr TimePoint kBegin{std::chrono::hours(1000)};
  static constexpr TimePoint kNever = TimePoint::max();

  Thread& add_thread(std::string name, int process, std::function<void()> body);
  // The running thread comes to a point, waits, or lets others go on.
  void point();
  void wait_until(const void* word, TimePoint until);
  void go_elsewhere();
  void strike();
  bool is_ready(const Thread& thread) const;
  TimePoint ready_at(const Thread& thread) const;
  Thread* next_ready();
  void enter(Thread& thread);
  std::string who_waits() const;

  Draws draws_;
  const Plan plan_;
  TimePoint now_ = kBegin;
  std::chrono::nanoseconds fault_at_{-1};
  std::int64_t points_ = 0;
  std::uint64_t schedule_ = 0;
  int lost_wakes_ = 0;
  std::string lost_by_;
  Thread* running_ = nullptr;
  int begun_ = 0;
  std::vector<std::shared_ptr<Thread>> threads_;
  std::deque<Process> processes_;
};

}  // namespace tessera::simulated
