// What is said of a run's plans, for people and as JSON: how much memory they take, and which rank of the
// mesh holds what.
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

// The last columns of a table with a line for each pipeline rank: MiB of one of its ranks, on the device and
// wherever else any of the lines has some.
class ArenaColumns {
 public:
  explicit ArenaColumns(std::span<const ArenaBytes> lines);
  std::string heading() const;
  std::string line(const ArenaBytes& bytes) const;

 private:
  std::vector<Space> others_;
};
// In a line's object: arena_bytes of the device, and likewise of the others.
void add_arenas(nlohmann::json& object, const ArenaBytes& bytes);

struct RunPlans {
  std::vector<TrainerPlan> by_pipeline_rank;
  TrainerPlan alone;  // on one rank, nothing sharded

  explicit RunPlans(const Setup& setup);
  // The pipeline rank whose arena of the space is the largest, the first of equals, and its plan.
  int fullest(Space space) const { return fullest_pipeline_rank(by_pipeline_rank, space); }
  const TrainerPlan& of_fullest(Space space) const {
    return by_pipeline_rank[static_cast<std::size_t>(fullest(space))];
  }
  const SpacePlan& most(Space space) const { return of_fullest(space).memory.space(space); }
  std::int64_t most_bytes(Space space) const { return most(space).arena_bytes; }
  // Where any pipeline rank holds something.
  std::vector<Space> spaces() const;
  // " on pipeline rank 1, where it is most"; empty where there is one.
  std::string where_most(Space space) const;
  // The table of memory, of the pipeline rank that is fullest on the device, which it names where there are
  // several.
  std::string table() const;
};

// Bytes by category at the peak, arena and persistent bytes: of the plan, in each space of the pipeline rank
// that holds most there, and of one rank unsharded.
nlohmann::json memory_json(const RunPlans& plans);

// Whether there is more to say of the mesh than how many shards it has.
bool has_grid(const Mesh& mesh);

// A row for each pipeline rank: its units, its ranks by replica, and the bytes of one rank. `plans` are of
// all pipeline ranks.
std::string mesh_grid(const Setup& setup, std::span<const TrainerPlan> plans);

// Axes, and for each pipeline rank the first and last unit of its chunks, its ranks and its bytes.
nlohmann::json mesh_json(const Setup& setup, std::span<const TrainerPlan> plans);

}  // namespace tessera::cli
