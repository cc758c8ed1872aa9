// What the engine itself costs an instruction: buffers of a few bytes and no compute. Prints; asserts
// loosely, as machines are shared.
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "tessera/program.h"
#include "tests/engine/toy.h"
#include "tests/program/sanitized.h"

namespace tessera::testing {
namespace {

constexpr double kSlack = kSanitized ? 1000 : 5;

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

std::vector<UnitSpec> chain(int count) {
  std::vector<UnitSpec> units;
  for (int unit = 0; unit < count; ++unit) {
    const std::string name = "u" + std::to_string(unit);
    units.push_back({.name = name, .parameters = {{.name = name + ".p", .shape = {1}}}});
  }
  return units;
}

struct Cost {
  double us = 0;  // an instruction, in the fastest step
  std::size_t instructions = 0;
};

struct Setting {
  int world = 1;
  bool strict = false;
  int steps = 400;
};

Cost cost(const Setting& setting) {
  Cost best{1e9, 0};
  run_local(setting.world, {}, [&](Communicator world) {
    EngineOptions options = toy_options(setting.world, 3);
    options.debug.strict_order = setting.strict;
    options.waits.waiting = Waiting::automatic;
    options.optimizer.options = SgdOptions{};
    Engine engine(world, chain(64), options);
    engine.initialize(toy_fill());
    for (int step = 0; step < setting.steps; ++step) {
      world.barrier();
      const auto begin = Clock::now();
      engine.begin(StepKind::train);
      for (UnitId unit = 0; unit < 64; ++unit) engine.use(unit, Pass::forward).end();
      for (UnitId unit = 63; unit >= 0; --unit) {
        UnitLease lease = engine.use(unit, Pass::backward);
        *static_cast<float*>(lease.gradient(unit).data) = 1.0f;
        lease.end();
      }
      (void)engine.step({.learning_rate = 0.01});
      if (world.rank() != 0) continue;
      best.instructions = engine.program(0).instructions.size();
      best.us = std::min(best.us, us_since(begin) / static_cast<double>(best.instructions));
    }
  });
  return best;
}

void sleep_until_changed(std::atomic<int>& word, int from) {
  while (word.load() == from)
    syscall(SYS_futex, reinterpret_cast<int*>(&word), FUTEX_WAIT_PRIVATE, from, nullptr, nullptr, 0);
}
void change(std::atomic<int>& word, int to) {
  word.store(to);
  syscall(SYS_futex, reinterpret_cast<int*>(&word), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

// Two threads hand a token back and forth, asleep in between: the fastest wake-up.
double wake_up_us() {
  constexpr int kRounds = 300;
  std::atomic<int> turn{0};
  std::thread other([&] {
    for (int round = 0; round < kRounds; ++round) {
      sleep_until_changed(turn, 2 * round);
      change(turn, 2 * round + 2);
    }
  });
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = Clock::now();
    change(turn, 2 * round + 1);
    sleep_until_changed(turn, 2 * round + 1);
    best = std::min(best, us_since(begin) / 2);
  }
  other.join();
  return best;
}

// The same by spinning: far below a wake-up where each thread has a core, far above where other work keeps
// both on one.
double spin_us() {
  constexpr int kRounds = 500;
  std::atomic<int> turn{0};
  std::thread other([&] {
    for (int round = 0; round < kRounds; ++round) {
      while (turn.load() == 2 * round) {
      }
      turn.store(2 * round + 2);
    }
  });
  const auto begin = Clock::now();
  for (int round = 0; round < kRounds; ++round) {
    turn.store(2 * round + 1);
    while (turn.load() == 2 * round + 1) {
    }
  }
  const double us = us_since(begin) / (2 * kRounds);
  other.join();
  return us;
}

// One rank has nobody to wait for, but in its lanes: what is left is the engine's own. It has no gathers;
// reductions, sums and updates run beside the uses.
TEST(Overhead, PerInstruction) {
  const Cost strict = cost({.strict = true});
  std::printf("strict order: %.3f us an instruction, of %zu (target 1)\n", strict.us, strict.instructions);
  EXPECT_LT(strict.us, 1.0 * kSlack);
  double bound = 0, us = 1;
  for (int attempt = 0; attempt < 3 && us > bound; ++attempt) {
    const double wake_up = wake_up_us(), spin = spin_us();
    us = cost({.steps = 200}).us;
    bound = std::max({2.0, wake_up, spin}) * kSlack;
    std::printf(
        "lanes: %.3f us an instruction (target 2 with a core for each of 2 threads; %u cores here); "
        "a bare wake-up takes %.3f us, a token by spinning %.3f us\n",
        us, std::thread::hardware_concurrency(), wake_up, spin);
  }
  EXPECT_LT(us, bound);
}

// With a peer each collective is at least two meetings of two threads.
TEST(Overhead, PerInstructionOfTwoRanks) {
  const double wake_up = wake_up_us();
  for (bool strict : {true, false}) {
    const Cost two = cost({.world = 2, .strict = strict, .steps = 8});
    std::printf("two ranks, %s: %.3f us an instruction, of %zu; a bare wake-up takes %.3f us\n",
                strict ? "strict order" : "lanes", two.us, two.instructions, wake_up);
  }
}

}  // namespace
}  // namespace tessera::testing
