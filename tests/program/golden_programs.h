// Small programs whose texts are kept in tests/program/golden, a file for each.
#pragma once

#include <string>
#include <vector>

#include "tessera/program.h"

namespace tessera::testing {

struct GoldenPrograms {
  std::string name;  // of the file, without ".txt"
  std::vector<Program> programs;
};

std::vector<GoldenPrograms> golden_programs();

}  // namespace tessera::testing
