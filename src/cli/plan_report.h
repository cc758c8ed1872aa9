// Reports on a run's plans, for people and as JSON: how much memory they take, and which rank of the mesh
// holds what.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "src/cli/setup.h"

namespace tessera::cli {

using ArenaBytes = std::array<std::int64_t, kSpaces>;  // by space
ArenaBytes arena_bytes(const MemoryPlan& plan);

// The last columns of a table with a line for each pipeline rank: the MiB of one of its ranks, on the device
// and in each other space in which any line has bytes.
class ArenaColumns {
 public:
  explicit ArenaColumns(std::span<const ArenaBytes> lines);
  std::string heading() const;
  std::string line(const ArenaBytes& bytes) const;

 private:
  std::vector<Space> others_;
};
// Adds to a line's object arena_bytes of the device, and likewise of the other spaces.
void add_arenas(nlohmann::json& object, const ArenaBytes& bytes);

struct RunPlans {
  std::vector<TrainerPlan> by_pipeline_rank;
  TrainerPlan alone;  // on a single rank, with nothing sharded

  explicit RunPlans(const Setup& setup);
  // The pipeline rank with the largest arena in the space, the first of equals, and its plan.
  int fullest(Space space) const { return fullest_pipeline_rank(by_pipeline_rank, space); }
  const TrainerPlan& of_fullest(Space space) const {
    return by_pipeline_rank[static_cast<std::size_t>(fullest(space))];
  }
  const SpacePlan& most(Space space) const { return of_fullest(space).memory.space(space); }
  std::int64_t most_bytes(Space space) const { return most(space).arena_bytes; }
  // The spaces in which any pipeline rank holds something.
  std::vector<Space> spaces() const;
  // " on pipeline rank 1, where it is most"; empty if there is one pipeline rank.
  std::string where_most(Space space) const;
  // The table of memory of the pipeline rank that is fullest on the device. Names that rank if there are
  // several.
  std::string table() const;
};

// Bytes by category at the peak, arena bytes and persistent bytes: for each space, of the pipeline rank that
// holds most there, and of a single rank with nothing sharded.
nlohmann::json memory_json(const RunPlans& plans);

// Whether the mesh has several pipeline ranks or replicas.
bool has_grid(const Mesh& mesh);

// A row for each pipeline rank: its units, its ranks by replica, and the bytes of one rank. `plans` are
// indexed by pipeline rank.
std::string mesh_grid(const Setup& setup, std::span<const TrainerPlan> plans);

// The axes and, for each pipeline rank, the first and last unit of each of its chunks, its ranks and its
// bytes.
nlohmann::json mesh_json(const Setup& setup, std::span<const TrainerPlan> plans);

}  // namespace tessera::cli
