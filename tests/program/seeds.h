// Which random cases a test draws: the few of every test run or, by TESSERA_SEEDS=FROM:COUNT, others.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <sstream>

namespace tessera::testing {

struct Seeds {
  std::uint64_t from = 1, count;

  explicit Seeds(std::uint64_t of_every_run) : count(of_every_run) {
    const char* seeds = std::getenv("TESSERA_SEEDS");
    if (seeds == nullptr) return;
    char separator = ':';
    std::istringstream(seeds) >> from >> separator >> count;
  }
  std::uint64_t end() const { return from + count; }
};

}  // namespace tessera::testing
