// Ranks that cannot be told apart, so that a world of thousands is proved through a few of them. Knows the
// mesh and who runs which program; nothing of what programs do.
#pragma once

#include <array>
#include <vector>

#include "tessera/world_programs.h"

namespace tessera {

// A set of ranks that run one program, and along each axis meet the same classes. What holds for a walk
// from rank to rank along groups then holds between classes, both ways: a cycle of waits exists among ranks
// exactly where one exists among classes.
struct RankClass {
  int program = 0;
  int rank = 0;                                 // its first
  int ranks = 0;                                // how many it has
  std::array<std::vector<int>, kGroups> meets;  // by axis: the classes in the rank's group, its own included
  IdVector<int> along_pipeline;                 // the class of each member of its group along that axis
};

// The fewest such classes, ordered by their first rank.
IdVector<RankClass> rank_classes(const WorldPrograms& world);

}  // namespace tessera
