// Which rank holds what: the mesh as a grid, for people and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "src/cli/setup.h"

namespace tessera::cli {

// Whether there is more to say of the mesh than how many shards it has.
bool has_grid(const Mesh& mesh);

// A row for each pipeline rank: its units, its ranks by replica, and the bytes of one rank. `plans` are of
// all pipeline ranks.
std::string mesh_grid(const Setup& setup, std::span<const TrainerPlan> plans);

// Axes, and for each pipeline rank the first and last unit of its chunks, its ranks and its bytes.
nlohmann::json mesh_json(const Setup& setup, std::span<const TrainerPlan> plans);

}  // namespace tessera::cli
