// Checks the paths that a run writes to, before it computes, so that a run that would fail after hours is
// refused at the start.
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

// A path to write to was refused.
class RefusedOutput : public UsageError {
 public:
  using UsageError::UsageError;
};

// Checks that a run overwrites nothing that it reads. The files that a run of the configuration in the file
// `path` writes, and the `outputs` of the command line, must differ from all inputs, including data and
// weights that the configuration names, and from each other. Throws RefusedOutput naming both. Empty paths
// are ignored.
void check_apart(const Config& config, const std::string& path, const std::vector<NamedFile>& outputs);

// Checks that no output is in the folder of the checkpoint that is read, or in the folder of all of its run's
// checkpoints. Throws RefusedOutput naming both.
void check_outside(const std::vector<NamedFile>& outputs, const std::string& checkpoint);

// Checks that an export does not overwrite the weights that are read, and that a path for one file is not a
// folder. `key` is the key that named `to`. Throws RefusedOutput.
void check_export_place(const char* key, const std::string& to, const Config& config);

// Checks that the files which are written after the work can be written. Throws EnvironmentError naming the
// key.
void check_places(const RunConfig& run);

// Checks that offload.directory can be written, if `engine` keeps anything there. Every process checks,
// because the directory is on its host's own disk. Throws EnvironmentError naming the key and, among several
// processes, the one that cannot write.
void check_disk_directory(const EngineOptions& engine, const Communicator& world);

}  // namespace tessera::cli
