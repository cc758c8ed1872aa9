// What rank 0 tells while a run trains: the progress line, the metrics file, and what the report at the end
// sums up. Decides nothing.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "src/cli/metrics.h"
#include "src/cli/progress.h"
#include "src/cli/rank_place.h"
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
  std::int64_t validation_step = 0;  // that it is of
  std::optional<double> hidden;      // the share of communication behind compute, over the traced steps
  std::int64_t skipped = 0;
  std::int64_t peak_bytes = 0;  // of a process that is one rank: proportional, at the plan's peak
  GpuGrowth gpus;               // of all that ranks train on
  Numerics numerics;            // what decides the bits
  std::string disk;             // how the file there is read and written; empty where nothing lies on it
  ArenaRegistration exchange;   // how processes of one host exchange what is large
  bool interrupted = false;
  std::string checkpoint;  // the last one saved
  std::string exported;    // the weights
  std::string sample;      // bytes, with the prompt
};

// A training step that is over.
struct LoggedStep {
  std::int64_t number = 0;  // in the whole run; the first is 1
  std::int64_t tokens = 0;  // trained on with it, in the whole run
  StepResult result = {};
  double seconds = 0.0;
  std::optional<StepTiming> timing = {};  // where it was measured
};

class RunLog {
 public:
  // The run begins behind `first_step`, to which its metrics file is rewound. What is given outlives this.
  RunLog(const Setup& setup, Metrics& metrics, RunSummary& summary, std::int64_t first_step);

  // Whether the metrics have the step that the run begins behind, and no evaluation of it.
  bool lacks_evaluation() const { return metrics_.lacks_evaluation(); }

  void step(const LoggedStep& step);
  void evaluated(std::int64_t step, const StepResult& result);
  // That the evaluation of a step was tried twice, and is not to be made up for.
  void left_out(std::int64_t step);
  // A line of its own.
  void note(const std::string& line) { progress_.note(line); }
  // Ends the progress line.
  void finish();
  double elapsed() const;  // seconds, since this was made

  // Why the metrics could not be written, which ends the run, but not before it saved what it trained.
  const std::exception_ptr& unwritten() const { return unwritten_; }

 private:
  void sum_up(const LoggedStep& step);
  void show(const LoggedStep& step, double rate);
  void write(const nlohmann::json& line);

  const Setup& setup_;
  Metrics& metrics_;
  RunSummary& summary_;
  Progress progress_;
  std::chrono::steady_clock::time_point start_;
  std::int64_t first_step_;
  double shown_rate_ = 0.0;
  StepTiming measured_;  // sums
  std::exception_ptr unwritten_;
};

}  // namespace tessera::cli
