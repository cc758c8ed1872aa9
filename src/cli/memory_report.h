// The plans of a run, made once for all that is said of its memory.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/cli/setup.h"

namespace tessera::cli {

struct RunPlans {
  std::vector<TrainerPlan> by_pipeline_rank;
  int fullest = 0;    // of these
  TrainerPlan alone;  // on one rank, nothing sharded

  explicit RunPlans(const Setup& setup);
  const TrainerPlan& of_fullest() const { return by_pipeline_rank[static_cast<std::size_t>(fullest)]; }
  // The largest arena of a space on any pipeline rank.
  std::int64_t most_bytes(Space space) const;
  // The table of memory, of the fullest pipeline rank, which it names where there are several.
  std::string table() const;
};

// Bytes by category at the peak, arena and persistent bytes: of the plan, and of one rank unsharded.
nlohmann::json memory_json(const RunPlans& plans);

}  // namespace tessera::cli
