// Where a run saves and what it continues: settled before it writes or computes anything, then loaded.
#pragma once

#include <filesystem>
#include <optional>

#include "src/cli/config.h"
#include "src/cli/setup.h"
#include "tessera/checkpoint.h"
#include "tessera/engine.h"

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

// Loads it into the engine, checks that the run is of the same model, data and batch, and says on rank 0, on
// stdout, what else has changed since, and whether what comes next has the bits that the run would have had
// without the pause: `numerics` is what decides them now. Collective. The state has the tokens also
// where an earlier build saved none. UsageError and EnvironmentError as load_checkpoint() has them, with the
// keys that were changed, and for what does not fit.
RunState resume_run(const std::filesystem::path& checkpoint, const Communicator& world, Engine& engine,
                    const Setup& setup, const Data& data, const Numerics& numerics);

}  // namespace tessera::cli
