// The training loop of one rank: steps, evaluations, checkpoints, and the decision to stop, which all ranks
// take together. Rank 0 also reports.
#pragma once

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "src/cli/gpu_memory.h"
#include "src/cli/metrics.h"
#include "src/cli/output.h"
#include "src/cli/progress.h"
#include "src/cli/run_folder.h"
#include "src/cli/setup.h"
#include "src/cli/utilisation.h"

namespace tessera::cli {

// What rank 0 knows at the end.
struct RunSummary {
  double tokens_per_second() const { return static_cast<double>(tokens) / std::max(step_seconds, 1e-9); }

  std::int64_t first_step = 0;  // of the checkpoint that was continued
  std::int64_t step = 0;
  double seconds = 0.0;       // of the whole loop
  double step_seconds = 0.0;  // of training steps only
  std::int64_t tokens = 0;    // trained on since the start
  Utilisation utilisation;
  double first_loss = 0.0, loss = 0.0;
  std::optional<double> validation_loss;
  std::optional<double> hidden;  // the share of communication behind compute, over the traced steps
  std::int64_t skipped = 0;
  std::int64_t peak_bytes = 0;  // of a process that is one rank: proportional, at the plan's peak
  GpuGrowth gpus;               // of all that ranks train on
  std::string disk;             // how the file there is read and written; empty where nothing lies on it
  ArenaRegistration exchange;   // how processes of one host exchange what is large
  bool interrupted = false;
  std::string checkpoint;  // the last one saved
  std::string exported;    // the weights
  std::string sample;      // bytes, with the prompt
};

// Files that rank 0 writes, and the checkpoint that all ranks continue.
struct RunFiles {
  RunFolder folder;
  Metrics metrics;
  OutputFile trace;
};

// Set by a signal: the run ends after the step in progress.
extern std::atomic<int> stop_signal;

// Runs on every rank's thread, with equal arguments. `files` and `summary` are touched by rank 0 only, but
// for files.folder, which all read, and peak_bytes.
void train_rank(const Communicator& world, const Setup& setup, const Data& data, RunFiles& files,
                RunSummary& summary);

}  // namespace tessera::cli
