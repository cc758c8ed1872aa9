// Of how many cases a test takes one: as many as in every test run or, by TESSERA_SAMPLE, another number, of
// which 1 takes all of them.
#pragma once

#include <cstdlib>
#include <string>

namespace tessera::testing {

inline int sampled_each(int of_every_run) {
  const char* set = std::getenv("TESSERA_SAMPLE");
  return set == nullptr ? of_every_run : std::stoi(set);
}

}  // namespace tessera::testing
