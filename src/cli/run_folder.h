// Where a run saves and what it continues, settled before it writes or computes anything.
#pragma once

#include <filesystem>
#include <optional>

#include "src/cli/config.h"
#include "tessera/checkpoint.h"

namespace tessera::cli {

struct RunFolder {
  CheckpointLock lock;
  std::optional<std::filesystem::path> continued;  // a checkpoint's own folder; the same on every rank
};

// Collective over processes, rank 0's decision for all; without a world, for all threads of this one.
// UsageError where run.resume does not allow what is there: a fresh run beside the checkpoints of another
// would have its own pruned by the other's numbers; nor for a checkpoint's own folder, in which no later run
// would look for what this one saves. EnvironmentError where another run saves there.
RunFolder open_run_folder(const RunConfig& run, const Communicator& world);

}  // namespace tessera::cli
