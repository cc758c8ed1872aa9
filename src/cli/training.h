// The training loop of one rank: steps, evaluations, checkpoints, and the decision to stop, which all ranks
// make together.
#pragma once

#include "src/cli/output.h"
#include "src/cli/resume.h"
#include "src/cli/run_log.h"

namespace tessera::cli {

// The files that rank 0 writes, and the checkpoint that all ranks continue.
struct RunFiles {
  RunFolder folder;
  Metrics metrics;
  OutputFile trace;
  KeptFiles handed_on;  // what an export gets from the weights that the run began with
};

// Runs on every rank's thread, with equal arguments. Only rank 0 uses `files` and `summary`, except
// files.folder, which all ranks read, and summary.peak_bytes.
void train_rank(const Communicator& world, const Setup& setup, const Data& data, RunFiles& files,
                RunSummary& summary);

}  // namespace tessera::cli
