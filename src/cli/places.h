// Where a run may write, settled before it computes: what fails after hours is refused before.
#pragma once

#include <string>
#include <vector>

#include "src/cli/config.h"
#include "src/cli/setup.h"
#include "tessera/communicator.h"
#include "tessera/error.h"

namespace tessera::cli {

// A file, and the key or argument that names it.
struct NamedFile {
  std::string key, path;
};

// A path that something is to be written to, and that is not to be.
class RefusedOutput : public UsageError {
 public:
  using UsageError::UsageError;
};

// Nothing that is read is written over: what a run of the configuration in the file `path` writes, and
// `outputs` of the command line, are neither an input, all data and weights that are named among them, nor
// each other. RefusedOutput naming both. Empty paths are none.
void check_apart(const Config& config, const std::string& path, const std::vector<NamedFile>& outputs);

// That no output lies in the folder of a checkpoint that is read, nor in that of all of its run's.
// RefusedOutput naming both.
void check_outside(const std::vector<NamedFile>& outputs, const std::string& checkpoint);

// An export goes over no weights that are read, and becomes a file only where it may. `key` is what `to` was
// given as. RefusedOutput.
void check_export_place(const char* key, const std::string& to, const std::string& weights);

// What is written after the work can be. EnvironmentError naming the key.
void check_places(const RunConfig& run);

// That offload.directory, where something is kept there by `engine`, is one that may be written: of every
// process, as it is on the host's own disk. EnvironmentError naming the key and, among several processes,
// whose it is.
void check_disk_directory(const EngineOptions& engine, const Communicator& world);

}  // namespace tessera::cli
