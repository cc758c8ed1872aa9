// Continues a run from a checkpoint.
#pragma once

#include <filesystem>

#include "src/cli/setup.h"
#include "tessera/checkpoint.h"
#include "tessera/engine.h"

namespace tessera::cli {

// Loads it into the engine, checks that the run is of the same model, data and batch, and says on rank 0, on
// stdout, what else has changed since, for it changes the result. Collective. The state has the tokens also
// where an earlier build saved none. UsageError and EnvironmentError as load_checkpoint() has them, with the
// keys that were changed, and for what does not fit.
RunState resume_run(const std::filesystem::path& checkpoint, const Communicator& world, Engine& engine,
                    const Setup& setup, const Data& data);

}  // namespace tessera::cli
