// Reports on a run's plans, for people and as JSON: how much memory they take, and which rank of the mesh
// holds what.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "src/cli/setup.h"

namespace tessera::cli {

using ArenaBytes = IdArray<std::int64_t, kSpaces>;  // by space
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
  Mesh mesh;
  IdVector<TrainerPlan> of_ranks;  // in the order of plan_pipeline()
  TrainerPlan alone;               // on one rank, nothing sharded

  explicit RunPlans(const Setup& setup);
  // Which plan's arena of the space is the largest, the first of equals, and that plan.
  int fullest(Space space) const { return fullest_plan(of_ranks, space); }
  const TrainerPlan& of_fullest(Space space) const { return of_ranks[fullest(space)]; }
  const SpacePlan& most(Space space) const { return of_fullest(space).memory.space(space); }
  std::int64_t most_bytes(Space space) const { return most(space).arena_bytes; }
  // The bytes of the arenas of all ranks together.
  std::int64_t bytes_of_all(Space space) const;
  // Where any rank holds something.
  std::vector<Space> spaces() const;
  // "pipeline rank 1", "data ranks 2 to 3, which rest in the last round", or both; empty where all ranks have
  // equal plans.
  std::string whose(int plan) const;
  // " on pipeline rank 1, where it is most"; empty where there is one.
  std::string where_most(Space space) const;
  // A line for each set of data ranks whose fullest arena of the space is smaller than the fullest of all.
  std::string other_ranks(Space space) const;
  // The table of memory, of the ranks that are fullest on the device, which it names where there are several.
  std::string table() const;

 private:
  int end_of_data_ranks(std::size_t plan) const;
  std::string data_ranks(std::size_t plan) const;
};

// Bytes by category at the peak, arena bytes and persistent bytes: for each space, of the pipeline rank that
// holds most there, and of a single rank with nothing sharded.
nlohmann::json memory_json(const RunPlans& plans);

// Whether the mesh has several pipeline ranks or replicas.
bool has_grid(const Mesh& mesh);

// A row for each pipeline rank: its units, its ranks by replica, and the most bytes of one of its ranks.
// `plans` are in the order of plan_pipeline().
std::string mesh_grid(const Setup& setup, std::span<const TrainerPlan> plans);

// The axes and, for each pipeline rank, the first and last unit of each of its chunks, its ranks and its
// bytes.
nlohmann::json mesh_json(const Setup& setup, std::span<const TrainerPlan> plans);

}  // namespace tessera::cli
