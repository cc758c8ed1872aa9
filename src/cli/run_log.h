// What rank 0 reports while a run trains: the progress line, the metrics file, and the summary for the report
// at the end. Decides nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "src/cli/balance.h"
#include "src/cli/clock.h"
#include "src/cli/event_file.h"
#include "src/cli/metrics.h"
#include "src/cli/progress.h"
#include "src/cli/rank_place.h"
#include "src/cli/setup.h"
#include "src/cli/utilisation.h"

namespace tessera::cli {

// What rank 0 knows at the end of the run.
struct RunSummary {
  double tokens_per_second() const { return static_cast<double>(tokens) / std::max(step_seconds, 1e-9); }

  std::int64_t first_step = 0;  // step of the checkpoint that was continued; 0 without one
  std::int64_t step = 0;
  double seconds = 0.0;       // of the whole loop
  double step_seconds = 0.0;  // of training steps only
  std::int64_t tokens = 0;    // trained on since the start
  Utilisation utilisation;
  double first_loss = 0.0, loss = 0.0;
  std::optional<double> validation_loss;
  std::int64_t validation_step = 0;  // the step of validation_loss
  std::optional<double> hidden;      // share of communication hidden by compute, over the traced steps
  std::int64_t skipped = 0;
  std::int64_t peak_bytes = 0;  // if ranks are processes: this process's proportional bytes (Pss) at the
                                // plan's peak
  GpuGrowth gpus;               // over all GPUs that ranks train on
  Numerics numerics;            // what decides the bits
  std::string disk;             // how the file on the disk is read and written; empty if nothing is on the
                                // disk
  ArenaRegistration exchange;   // how processes of one host exchange large data
  std::vector<std::string> notices;  // what rank 0's device does slower than it could
  bool interrupted = false;
  std::string checkpoint;  // the last one saved
  std::string exported;    // path of the exported weights
  std::string sample;      // the sampled text with its prompt, as bytes
};

// A training step that has ended.
struct LoggedStep {
  std::int64_t number = 0;  // in the whole run; the first is 1
  std::int64_t tokens = 0;  // trained on in the whole run, with this step
  StepResult result = {};
  double seconds = 0.0;
  std::optional<StepTiming> timing = {};   // none if it was not measured
  std::optional<Balance> balance = {};     // nor this, or of one rank
  std::optional<std::string> memory = {};  // see MemoryWatch
};

class RunLog {
 public:
  // The run begins after `first_step`, to which its metrics file is rewound. The arguments must outlive this
  // object.
  RunLog(const Setup& setup, Metrics& metrics, RunSummary& summary, std::int64_t first_step);

  // Whether the metrics have the step after which the run begins, but no evaluation of it.
  bool lacks_evaluation() const { return metrics_.lacks_evaluation(); }

  void step(const LoggedStep& step);
  void evaluated(std::int64_t step, const StepResult& result);
  // Notes that the evaluation of a step was tried twice and is left out.
  void left_out(std::int64_t step);
  // Prints a line of its own.
  void note(const std::string& line) { progress_.note(line); }
  // Ends the progress line.
  void finish();
  double elapsed() const;  // seconds, since this was made

  // Why the metrics or events could not be written; null if they were. This ends the run, after it has saved
  // its training.
  const std::exception_ptr& unwritten() const { return unwritten_; }

 private:
  void sum_up(const LoggedStep& step);
  void show(const LoggedStep& step, double rate);
  void watch(const Balance& balance);
  void write(const nlohmann::json& line);

  const Setup& setup_;
  Metrics& metrics_;
  EventFile events_;
  LagWatch lag_;
  RunSummary& summary_;
  Progress progress_;
  Clock::time_point start_;
  std::int64_t first_step_;
  double shown_rate_ = 0.0;
  StepTiming measured_;  // sums
  std::exception_ptr unwritten_;
};

}  // namespace tessera::cli
