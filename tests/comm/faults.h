// Ranks that communicate as a trainer's do, until rank 1 does what it should not.
#pragma once

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "tessera/communicator.h"
#include "tessera/device.h"

namespace tessera::testing {

inline void misbehave(const std::string& how) {
  if (how == "throw") throw std::runtime_error("the disk is full");
  if (how == "exit") std::exit(0);
  if (how == "vanish") std::_Exit(3);
  if (how == "kill") raise(SIGKILL);
  if (how == "stall") std::this_thread::sleep_for(std::chrono::seconds(20));
}

// Few bytes go through shared buffers, many are read from peers' arenas where they are on one host. In the
// middle all ranks run `at_fault`, and rank 1 misbehaves. A rank that an error reaches tells the others, says
// it, and ends with status 1.
inline void run_to_fault(
    Communicator world, const std::string& how, const std::function<void()>& at_fault = [] {}) try {
  constexpr std::int64_t kFew = 400, kMany = 400'000;
  Arena arena({.bytes = world.world() * kMany, .shared = world.wants_shared_arena()});
  world.register_arena(arena);
  for (int round = 0; round < 2000; ++round) {
    if (round == 50) at_fault();
    if (round == 50 && world.rank() == 1) misbehave(how);
    for (const std::int64_t bytes : {kFew, kMany})
      world.all_gather(arena.base() + world.rank() * bytes, arena.base(), bytes, {.unit = "block.1"});
  }
} catch (const std::exception& error) {
  world.fail(error.what());
  std::fprintf(stderr, "%s\n", error.what());
  std::_Exit(1);
}

}  // namespace tessera::testing
