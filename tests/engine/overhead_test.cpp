// What the engine itself costs an instruction: buffers of a few bytes and no compute. Prints; asserts
// loosely, as machines are shared.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

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

// One rank, every instruction that two would have but the waiting for each other: a stage of one shard has no
// gathers, so reductions and updates are what runs beside the uses.
Cost cost(bool strict, Waiting waiting) {
  Cost best{1e9, 0};
  run_local(1, {}, [&](Communicator world) {
    EngineOptions options = toy_options(1, 0);
    options.strict_order = strict;
    options.waiting = waiting;
    options.optimizer.options = SgdOptions{};
    Engine engine(world, chain(64), options);
    engine.initialize(toy_fill());
    best.instructions = engine.program(0).instructions.size();
    for (int step = 0; step < 400; ++step) {
      const auto begin = Clock::now();
      engine.begin(StepKind::train);
      for (UnitId unit = 0; unit < 64; ++unit) engine.use(unit, Pass::forward).end();
      for (UnitId unit = 63; unit >= 0; --unit) {
        UnitLease lease = engine.use(unit, Pass::backward);
        *static_cast<float*>(lease.gradient(unit).data) = 1.0f;
        lease.end();
      }
      engine.step({.learning_rate = 0.01});
      best.us = std::min(best.us, us_since(begin) / static_cast<double>(best.instructions));
    }
  });
  return best;
}

// Two threads handing a token back and forth by condition-free futex waits: what std::atomic::wait costs.
double wake_up_us() {
  constexpr int kRounds = 2000;
  std::atomic<int> turn{0};
  std::thread other([&] {
    for (int round = 0; round < kRounds; ++round) {
      while (turn.load() != 2 * round + 1) turn.wait(2 * round);
      turn.store(2 * round + 2);
      turn.notify_one();
    }
  });
  const auto begin = Clock::now();
  for (int round = 0; round < kRounds; ++round) {
    turn.store(2 * round + 1);
    turn.notify_one();
    while (turn.load() != 2 * round + 2) turn.wait(2 * round + 1);
  }
  const double us = us_since(begin) / (2.0 * kRounds);
  other.join();
  return us;
}

TEST(Overhead, PerInstruction) {
  const Cost strict = cost(true, Waiting::automatic);
  std::printf("strict order: %.3f us an instruction, of %zu (target 1)\n", strict.us, strict.instructions);
  EXPECT_LT(strict.us, 1.0 * kSlack);
  const double wake_up = wake_up_us();
  const Cost lanes = cost(false, Waiting::automatic);
  std::printf(
      "lanes: %.3f us an instruction (target 2 with a core for each of 2 threads; %u cores here); "
      "a bare wake-up takes %.3f us\n",
      lanes.us, std::thread::hardware_concurrency(), wake_up);
  EXPECT_LT(lanes.us, std::max(2.0, wake_up) * kSlack);
}

}  // namespace
}  // namespace tessera::testing
