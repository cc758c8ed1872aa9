#include "src/device/wait.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>
#include <thread>

#include "tessera/error.h"
#include "tessera/machine.h"

namespace tessera::device {
namespace {

using std::chrono::nanoseconds;

constexpr nanoseconds kFirstSlice = std::chrono::milliseconds(1);
constexpr nanoseconds kLongestSlice = std::chrono::milliseconds(10);

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, nanoseconds limit) {
  timespec time{};
  time.tv_sec = static_cast<time_t>(limit.count() / 1'000'000'000);
  time.tv_nsec = static_cast<long>(limit.count() % 1'000'000'000);
  const timespec* timeout = limit == kForever ? nullptr : &time;
  // Every way to return (woken, word changed, time passed, interrupted) makes the caller look again.
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, timeout, nullptr,
          0);
}

}  // namespace

std::chrono::milliseconds checked_deadline(std::chrono::milliseconds deadline, std::string_view name) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
  if (deadline <= std::chrono::milliseconds::zero())
    throw UsageError(fmt::format("{} is {} ms; it must be 1 ms or more", name, deadline.count()));
  return std::min(deadline, kLongest);
}

Crowd& Crowd::of_process() {
  static constinit Crowd crowd;
  return crowd;
}

WaitPolicy WaitPolicy::choose(Waiting waiting, int busy_threads) {
  if (waiting == Waiting::automatic) {
    const int cores = read_cores();
    if (busy_threads > 0 && busy_threads <= cores)
      waiting = Waiting::spin;
    else
      waiting = busy_threads > 0 && busy_threads <= 8 * cores ? Waiting::yield : Waiting::block;
  }
  switch (waiting) {
    case Waiting::spin:
      return {.spins = 2000, .yields = 50};
    case Waiting::yield:
      return {.spins = 200, .yields = 50};
    default:
      return {.spins = 1, .yields = 0};
  }
}

Signal::Sleeper::Sleeper(Signal& signal, nanoseconds timeout)
    : signal_(signal), patience_(timeout), slice_(timeout == kForever ? kForever : kFirstSlice) {
  signal_.sleepers_.fetch_add(1);
}

// All of the limit at once: a wake-up that is lost then shows.
bool Signal::Sleeper::sleep_simulated(Simulator& simulated, std::uint32_t epoch) {
  nanoseconds limit = kForever;
  if (slice_ != kForever) {
    limit = std::min<nanoseconds>(patience_.left(), Patience::kMostAtOnce);
    if (limit <= nanoseconds::zero()) return false;
  }
  simulated.yield();  // behind the check and before the sleep, where a notify() changes the epoch
  overslept_ = signal_.epoch_.load() == epoch && !simulated.sleep(&signal_.epoch_, limit);
  return true;
}

bool Signal::Sleeper::sleep(std::uint32_t epoch) {
  if (Simulator* const simulated = simulator()) return sleep_simulated(*simulated, epoch);
  if (slice_ == kForever) {
    futex_wait(signal_.epoch_, epoch, kForever);
    return true;
  }
  const nanoseconds left = patience_.left();
  if (left <= nanoseconds::zero()) return false;
  futex_wait(signal_.epoch_, epoch, std::min(left, slice_));
  slice_ = std::min(2 * slice_, kLongestSlice);
  return true;
}

void Signal::wake() noexcept {
  epoch_.fetch_add(1);
  if (Simulator* const simulated = simulator()) return simulated->wake(&epoch_);
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&epoch_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr,
          0);
}

void Pauses::pause() const {
  constexpr std::chrono::microseconds kYieldFor{200};
  if (Clock::now() - begin_ < kYieldFor)
    sched_yield();
  else
    pause_for(sleep_);
}

void pause_for(nanoseconds time) {
  if (Simulator* const simulated = simulator())
    simulated->sleep(nullptr, time);
  else
    std::this_thread::sleep_for(time);
}

void sleep_until_exactly(Clock::time_point time) {
  if (simulator() != nullptr) return pause_for(time - Clock::now());
  constexpr std::chrono::microseconds kYieldFor{200};  // longer than a kernel takes to wake a thread
  std::this_thread::sleep_until(time - kYieldFor);
  while (Clock::now() < time) sched_yield();
}

}  // namespace tessera::device
