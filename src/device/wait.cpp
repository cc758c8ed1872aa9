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

bool Signal::Sleeper::sleep(std::uint32_t epoch) {
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
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&epoch_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr,
          0);
}

void Pauses::pause() const {
  constexpr std::chrono::microseconds kYieldFor{200};
  if (Clock::now() - begin_ < kYieldFor)
    sched_yield();
  else
    std::this_thread::sleep_for(sleep_);
}

void sleep_until_exactly(Clock::time_point time) {
  constexpr std::chrono::microseconds kYieldFor{200};  // longer than a kernel takes to wake a thread
  std::this_thread::sleep_until(time - kYieldFor);
  while (Clock::now() < time) sched_yield();
}

}  // namespace tessera::device
