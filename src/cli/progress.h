// Shows how a run goes: a bar that redraws itself on a terminal, a few dozen plain lines elsewhere. Where the
// terminal is too narrow for all of it, what matters least is left out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/engine.h"

namespace tessera::cli {

struct ProgressLimits {
  std::int64_t first_step = 0;  // steps done before this start
  std::int64_t steps = 0;       // 0: no limit
  double seconds = 0.0;         // 0: no limit
};

// After a step.
struct ProgressState {
  double elapsed = 0.0;  // seconds since the start
  StepResult result = {};
  std::int64_t step = 0;
  double tokens_per_second = 0.0;
  double model_flops = 0.0;                // a second, by Model::flops_per_token; 0: not shown
  std::optional<double> utilisation = {};  // the share of the devices' peak that this is; none: not known
  std::optional<double> hidden = {};       // the share of communication behind compute; none measured yet
};

// Of the terminal that `file` is; 0: none, or one that says no width or cannot draw a line over (TERM=dumb).
int terminal_columns(int file);

// Part of the run that is done, 0 to 1, by the limit that is nearer.
double fraction_done(const ProgressLimits& limits, std::int64_t step, double elapsed);

class Progress {
 public:
  explicit Progress(const ProgressLimits& limits);  // looks at whether stdout is a terminal, and how wide
  // `columns` of the terminal; 0: none.
  Progress(const ProgressLimits& limits, int columns) : limits_(limits), columns_(columns) {}

  void step(const ProgressState& state);
  // A line of its own, above the bar.
  void note(const std::string& line);
  // Ends the bar's line.
  void finish();

 private:
  std::string status(const ProgressState& state) const;
  std::string bar(double done) const;

  ProgressLimits limits_;
  int columns_;
  bool bar_shown_ = false;
  double last_drawn_ = -1.0;  // elapsed seconds
  int lines_ = 0;
  std::string last_status_;
};

}  // namespace tessera::cli
