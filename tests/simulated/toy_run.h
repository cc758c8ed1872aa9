// Toy engines in a simulated world: what the tests share that train some, each to its end or to its failure.
#pragma once

#include <malloc.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/communicator.h"
#include "tessera/id_vector.h"
#include "tests/engine/toy.h"
#include "tests/simulated/draws.h"
#include "tests/simulated/world.h"

namespace tessera::simulated {

inline constexpr std::chrono::milliseconds kDeadline{5000};

// Thousands of small engines come and go: what one gives back the next one takes, without the system's zeros.
inline const bool kKeepsMemory = ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0 &&
                                 ::mallopt(M_TRIM_THRESHOLD, 1 << 30) == 1 &&
                                 ::mallopt(M_MMAP_THRESHOLD, 1 << 30) == 1;

inline EngineOptions simulated_toy_options(int ranks, int stage) {
  EngineOptions options = testing::toy_options(ranks, stage);
  options.waits.deadline = kDeadline;
  return options;
}

// For Plan::switches_one_in.
inline std::int64_t draw_switches(Draws& draws) {
  constexpr std::array<std::int64_t, 5> kOneIn = {0, 1, 2, 8, 64};
  return kOneIn[static_cast<std::size_t>(draws.below(std::ssize(kOneIn)))];
}

// How a rank's run ended: with its states, or with an error. A rank that was killed has neither.
struct Outcome {
  std::vector<float> states;
  std::string error;
  std::chrono::nanoseconds ended{};
};

struct Run {
  IdVector<Outcome> ranks;
  std::string wrong;                    // what is wrong with the world itself; "" if nothing is
  std::chrono::nanoseconds fault_at{};  // see World
};

// Calls `train` on each rank, which returns its states; what it throws fails the rank. `ended` is called when
// nothing more happens, before what was killed goes on and is given back.
inline void run_ranks(Run& run, int ranks, std::uint64_t seed, const Plan& plan,
                      const std::function<std::vector<float>(const Communicator& own)>& train,
                      const std::function<void(const World& world)>& ended) {
  run.ranks.resize(static_cast<std::size_t>(ranks));
  World world(seed, plan);
  std::vector<Communicator> communicators =
      make_local_world(ranks, {.deadline = kDeadline, .waiting = Waiting::block});
  Communicator first = communicators[0];
  for (int rank = 0; rank < ranks; ++rank)
    world.add_process("rank " + std::to_string(rank), [&, rank] {
      Communicator own = std::move(communicators[static_cast<std::size_t>(rank)]);
      Outcome& outcome = run.ranks[rank];
      try {
        outcome.states = train(own);
      } catch (const std::exception& error) {
        outcome.error = error.what();
        own.fail(error.what());
      }
      outcome.ended = world.elapsed();
    });
  run.wrong = world.run();
  run.fault_at = world.fault_at();
  ended(world);
  world.bury([&] { first.fail("the test is over"); });
}

inline bool any_failed(const Run& run) {
  return std::ranges::any_of(run.ranks, [](const Outcome& rank) { return !rank.error.empty(); });
}

}  // namespace tessera::simulated
