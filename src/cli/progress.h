// Shows the progress of a run: a bar that redraws itself on a terminal, or a few dozen plain lines elsewhere.
// On a narrow terminal the least important parts are left out.
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

// The state after a step.
struct ProgressState {
  double elapsed = 0.0;  // seconds since the start
  StepResult result = {};
  std::int64_t step = 0;
  double tokens_per_second = 0.0;
  double model_flops = 0.0;                // operations a second, by Model::flops_per_token(); 0: not shown
  std::optional<double> utilisation = {};  // model_flops as a share of the devices' peak; none: not known
  std::optional<std::string> memory = {};  // what is near its limit, "memory 97%"; none: nothing is
  std::optional<double> hidden = {};       // share of communication hidden by compute; none: not measured yet
};

// The width of the terminal that descriptor `file` is; 0 if it is not a terminal, has no known width, or
// cannot redraw a line (TERM=dumb).
int terminal_columns(int file);

// The part of the run that is done, 0 to 1, by the limit that will be reached first.
double fraction_done(const ProgressLimits& limits, std::int64_t step, double elapsed);

class Progress {
 public:
  explicit Progress(const ProgressLimits& limits);  // finds out whether stdout is a terminal, and its width
  // `columns` is the width of the terminal; 0: no terminal.
  Progress(const ProgressLimits& limits, int columns) : limits_(limits), columns_(columns) {}

  void step(const ProgressState& state);
  // Prints a line of its own, above the bar.
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
