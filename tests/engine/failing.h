// Runs engines of which one is to fail, and tells how each rank ended.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/engine/toy.h"

namespace tessera::testing {

inline constexpr std::chrono::milliseconds kDeadline{2000};
// What a busy machine may add to a wait of kDeadline.
inline constexpr std::chrono::milliseconds kGrace{1000};

struct Fate {
  enum class Kind { well, usage, communication, other } kind = Kind::well;
  std::string message;
  int culprit = -1;
  std::chrono::milliseconds after{0};  // since all engines were ready
};

inline Fate fate_of(const std::function<void()>& body) {
  try {
    body();
    return {};
  } catch (const CommunicationError& error) {
    return {Fate::Kind::communication, error.what(), error.culprit()};
  } catch (const UsageError& error) {
    return {Fate::Kind::usage, error.what()};
  } catch (const std::exception& error) {
    return {Fate::Kind::other, error.what()};
  }
}

// Runs `body` on an engine of these units on every rank; what a rank throws is kept, and no rank ends (nor
// its engine) before all have: what the others hear, they hear from the engine.
inline std::vector<Fate> run_failing(EngineOptions options, const std::vector<UnitSpec>& units,
                                     const std::function<void(Engine&, int)>& body) {
  using Clock = std::chrono::steady_clock;
  const int ranks = options.mesh.world();
  IdVector<Fate> fates(ranks);
  std::atomic<int> ended{0};
  options.waits.deadline = kDeadline;
  try {
    run_local(ranks, {.deadline = 3 * kDeadline, .waiting = Waiting::block}, [&](Communicator world) {
      Engine engine(world, units, options);
      engine.initialize(toy_fill());
      world.barrier();
      const auto begin = Clock::now();
      Fate& fate = fates[world.rank()];
      fate = fate_of([&] { body(engine, world.rank()); });
      fate.after = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
      ++ended;
      while (ended.load() < ranks && Clock::now() < begin + 3 * kDeadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  } catch (const Error&) {  // that a rank failed is what these tests are about
  }
  return fates;
}

inline std::vector<Fate> run_failing(EngineOptions options, const std::function<void(Engine&, int)>& body) {
  return run_failing(std::move(options), toy_units(DType::fp32), body);
}

// The rank was told of `culprit` long before the deadline, and says who it is.
inline void expect_blames(const Fate& fate, int culprit) {
  EXPECT_EQ(fate.kind, Fate::Kind::communication) << fate.message;
  EXPECT_EQ(fate.culprit, culprit) << fate.message;
  EXPECT_NE(fate.message.find("rank " + std::to_string(culprit) + " failed: "), std::string::npos)
      << fate.message;
  EXPECT_LT(fate.after, kGrace) << fate.message;
}

}  // namespace tessera::testing
