// Where a run may write, settled before it computes: what fails after hours is refused before.
#pragma once

#include <string>
#include <vector>

#include "src/cli/config.h"
#include "src/cli/setup.h"

namespace tessera::cli {

// Nothing that a run reads is written over by it: neither `inputs`, of which model.weights need not be one,
// nor one output by another, `json` among them. UsageError naming both.
void check_apart(const Config& config, const std::string& json, const std::vector<NamedFile>& inputs);

// What is written after the work can be. EnvironmentError naming the key.
void check_places(const RunConfig& run);

}  // namespace tessera::cli
