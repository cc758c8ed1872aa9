// Decides where a run saves and what it continues, before it writes or computes anything; then loads that.
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
  std::optional<std::filesystem::path> continued;  // a checkpoint's own folder, the same on every rank
};

// Rank 0 decides for all. Collective over processes; without a world it decides for all threads of this
// process. Throws UsageError if run.resume does not allow what is there: the checkpoints of a fresh run
// beside another's would be removed by the other's step numbers. Also for a checkpoint's own folder, because
// no later run would look there for what this one saves. Throws EnvironmentError if another run saves there.
RunFolder open_run_folder(const RunConfig& run, const Communicator& world);

// Loads the checkpoint into the engine and checks that the run has the same model, data and batch. Rank 0
// prints to stdout what else has changed since and changes the result, and the first fact of `numerics` that
// differs from the run that was saved. `numerics` then begins as that run did. Collective. The state has a
// number of tokens even if an earlier build saved none. Throws UsageError for anything that does not fit, and
// the errors of load_checkpoint() with the keys that were changed.
RunState resume_run(const std::filesystem::path& checkpoint, const Communicator& world, Engine& engine,
                    const Setup& setup, const Data& data, Numerics& numerics);

}  // namespace tessera::cli
