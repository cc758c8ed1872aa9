// Where a run may write, settled before it computes: what fails after hours is refused before.
#pragma once

#include <string>
#include <vector>

#include "src/cli/config.h"
#include "src/cli/setup.h"

namespace tessera::cli {

// Nothing that is read is written over: neither an input nor an output by another. UsageError naming both.
// Empty paths are none.
void check_apart(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs);

// The same of what a run writes, `json` among it, and reads: `inputs` and model.weights.
void check_apart(const Config& config, const std::string& json, std::vector<NamedFile> inputs);

// What is written after the work can be. EnvironmentError naming the key.
void check_places(const RunConfig& run);

}  // namespace tessera::cli
