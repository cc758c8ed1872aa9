// Which rank holds what: the mesh as a grid, for people and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/cli/setup.h"

namespace tessera::cli {

// What a pipeline rank's arena takes on the device, by coordinate along that axis.
std::vector<std::int64_t> arena_bytes_by_pipeline_rank(const Setup& setup);

// A row for each pipeline rank: its units, its ranks by replica, and the bytes of one rank. Empty for a mesh
// that is the shard axis alone.
std::string mesh_grid(const Setup& setup);

// Axes, and for each pipeline rank the first and last unit of its chunks, its ranks and its bytes.
nlohmann::json mesh_json(const Setup& setup);

}  // namespace tessera::cli
