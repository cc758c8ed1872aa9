// Waits between threads whose cores others want, too.
#include "src/device/wait.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

namespace tessera::device {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST(Crowd, IsWhereManyYieldsAreLate) {
  const Clock::time_point now = Clock::now();
  Crowd crowd;
  const auto yield = [&](int times, Clock::duration each) {
    for (int i = 0; i < times; ++i) crowd.yielded(now - each, now);
  };
  const auto late = [&](int times) { yield(times, milliseconds(3)); };
  const auto prompt = [&](int times) { yield(times, microseconds(1)); };
  late(2);
  EXPECT_FALSE(crowd.is_there());
  prompt(2 * Crowd::kLate);
  late(2);
  EXPECT_FALSE(crowd.is_there()) << "prompt ones came between";
  late(1);
  EXPECT_TRUE(crowd.is_there());
  late(100);
  prompt(2 * Crowd::kLate);
  EXPECT_FALSE(crowd.is_there()) << "it has gone";
  prompt(100);
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(crowd.is_there()) << i;
    prompt(1);
    late(1);
  }
  EXPECT_TRUE(crowd.is_there()) << "half of them are late";
}

TEST(Crowd, IsAskedForAgain) {
  const Clock::time_point past = Clock::now() - 2 * Crowd::kAskAgain;
  Crowd crowd;
  for (int i = 0; i < 4; ++i) crowd.yielded(past, past + milliseconds(3));
  EXPECT_FALSE(crowd.is_there()) << "that was long ago";
  crowd.yielded(Clock::now() - milliseconds(3), Clock::now());
  EXPECT_TRUE(crowd.is_there()) << "one more late yield is enough";
}

// Two threads in turns, `turns` times each.
Clock::duration take_turns(Waiting waiting, int turns) {
  const WaitPolicy policy = WaitPolicy::choose(waiting, 0);
  Signal signal;
  std::atomic<int> turn{0};
  const auto play = [&](int me) {
    for (int i = 0; i < turns; ++i) {
      signal.wait(policy, kForever, [&] { return turn.load() == 2 * i + me; });
      turn.fetch_add(1);
      signal.notify();
    }
  };
  const Clock::time_point begin = Clock::now();
  std::thread other(play, 1);
  play(0);
  other.join();
  return Clock::now() - begin;
}

// One core for this thread, and for all that it starts.
class OneCore {
 public:
  OneCore() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  ~OneCore() { sched_setaffinity(0, sizeof before_, &before_); }
  OneCore(const OneCore&) = delete;
  OneCore& operator=(const OneCore&) = delete;

 private:
  cpu_set_t before_;
};

// A yield costs a time slice of the other's, a sleep hardly anything.
TEST(Wait, HoldsItsOwnBesideAThreadThatTakesTheCore) {
  const OneCore core;
  std::atomic<bool> over{false};
  std::thread other([&] {
    while (!over.load(std::memory_order_relaxed)) {
    }
  });
  constexpr int kTurns = 600;
  const Clock::duration asleep = take_turns(Waiting::block, kTurns);
  for (const Waiting waiting : {Waiting::yield, Waiting::spin}) {
    const Clock::duration taken = take_turns(waiting, kTurns);
    EXPECT_LT(taken, 4 * asleep + milliseconds(200));
  }
  over = true;
  other.join();
}

// Stops this process, all its threads, for that long.
void suspend(milliseconds time) {
  const pid_t parent = ::getpid();
  const pid_t waker = ::fork();
  if (waker == 0) {
    std::this_thread::sleep_for(time);
    ::kill(parent, SIGCONT);
    ::_exit(0);
  }
  ASSERT_GT(waker, 0);
  ::raise(SIGSTOP);
  ::waitpid(waker, nullptr, 0);
}

// What is waited for is a thread that did not run then, either.
TEST(Wait, ASuspendedProcessHasNotWaited) {
  Signal signal;
  std::atomic<bool> ready{false};
  bool in_time = false;
  std::thread waits([&] {
    in_time =
        signal.wait(WaitPolicy::choose(Waiting::block, 0), milliseconds(1500), [&] { return ready.load(); });
  });
  suspend(milliseconds(1800));
  std::this_thread::sleep_for(milliseconds(50));
  ready = true;
  signal.notify();
  waits.join();
  EXPECT_TRUE(in_time);
}

TEST(Wait, EndsWithItsLimitAllTheSame) {
  Signal signal;
  const Clock::time_point begin = Clock::now();
  EXPECT_FALSE(signal.wait(WaitPolicy::choose(Waiting::block, 0), milliseconds(60), [] { return false; }));
  EXPECT_GE(Clock::now() - begin, milliseconds(60));
}

}  // namespace
}  // namespace tessera::device
