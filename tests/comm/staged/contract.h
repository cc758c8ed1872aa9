// What every backend must pass whose ranks are processes and whose collectives are those of src/comm/staged,
// beside the contract of tests/comm/contract.h. A test program that a launcher starts as so many processes
// links the objects staged_contract and says how it makes worlds.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/comm/contract.h"

namespace tessera::contract {

struct StagedSettings {
  std::int64_t shared_bytes = 0;
  bool direct = true;
  int ranks_per_host = 0;
  milliseconds deadline{60'000};
};

struct StagedWorlds {
  int ranks = 1, rank = 0;  // processes that were started together, and this one's number
  std::string settings;     // what the user calls them: "MpiOptions"
  // None where ranks are threads. What run_local() does: rethrows the cause on all processes, fills
  // `messages` per rank.
  std::function<void(const StagedSettings&, const std::function<void(Communicator)>& rank_main,
                     std::vector<std::string>* messages)>
      run;
};
StagedWorlds staged_worlds();  // the program's

// The instantiations of the contract: all of one host; with little room, where calls go in many parts; and as
// if each process were on a host of its own, or each two.
inline BackendUnderTest staged_backend(const std::string& name, int world, const StagedSettings& settings) {
  return {
      .name = name,
      .world = world,
      .run = [settings](int, const RunOptions& options, const std::function<void(Communicator)>& rank_main,
                        std::vector<std::string>* messages) {
        StagedSettings with_deadline = settings;
        with_deadline.deadline = options.deadline;
        staged_worlds().run(with_deadline, rank_main, messages);
      }};
}
inline BackendUnderTest staged_shared(int world) { return staged_backend("shared", world, {}); }
inline BackendUnderTest staged_narrow(int world) {
  return staged_backend("narrow", world, {.shared_bytes = 512 * 1024});
}
inline BackendUnderTest staged_messages(int world) {
  return staged_backend("messages", world, {.ranks_per_host = 1});
}
inline BackendUnderTest staged_pairs(int world) {
  return staged_backend("pairs", world, {.ranks_per_host = 2});
}

}  // namespace tessera::contract
