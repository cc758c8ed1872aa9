// Bytes by category as JSON: what a rank would hold unsharded, and what the plan gives it.
#pragma once

#include <nlohmann/json.hpp>

#include "src/cli/setup.h"

namespace tessera::cli {

// {"predicted": {"categories": {…}, "arena_bytes", "live_peak_bytes", "persistent_bytes"}, "replicated":
// {…}}, of one rank.
nlohmann::json memory_json(const Setup& setup);

}  // namespace tessera::cli
