// Where a run may write, settled before it computes: what fails after hours is refused before.
#pragma once

#include <string>
#include <vector>

#include "src/cli/config.h"
#include "src/cli/setup.h"
#include "tessera/communicator.h"

namespace tessera::cli {

// Nothing that is read is written over: neither an input nor an output by another. UsageError naming both.
// Empty paths are none.
void check_apart(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs);

// The same of what a run writes, `json` among it, and reads: `inputs`, and what is named as data and weights.
void check_apart(const Config& config, const std::string& json, std::vector<NamedFile> inputs);

// That no output lies in the folder of a checkpoint that is read, nor in that of all of its run's. UsageError
// naming both.
void check_outside(const std::vector<NamedFile>& outputs, const std::string& checkpoint);

// An export goes over no weights that are read, and becomes a file only where it may. `key` is what `to` was
// given as.
void check_export_place(const char* key, const std::string& to, const std::string& weights);

// What is written after the work can be. EnvironmentError naming the key.
void check_places(const RunConfig& run);

// That offload.directory, where something is kept there by `engine`, is one that may be written: of every
// process, as it is on the host's own disk. EnvironmentError naming the key and, among several processes,
// whose it is.
void check_disk_directory(const EngineOptions& engine, const Communicator& world);

}  // namespace tessera::cli
