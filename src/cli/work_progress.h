// How far a piece of work is whose size is known: a line that redraws itself on a terminal, or ten lines
// elsewhere.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "src/cli/clock.h"

namespace tessera::cli {

class WorkProgress {
 public:
  explicit WorkProgress(std::string label);

  // `tells` gives what the line says besides the share that is done; `seconds` have passed, more than 0.
  void show(std::int64_t done, std::int64_t all, const std::function<std::string(double seconds)>& tells);
  // Ends the line.
  void finish();

 private:
  std::string label_;
  Clock::time_point start_ = Clock::now();
  bool terminal_;
  bool shown_ = false;
  int percent_ = -10;
  double next_ = 0.0;  // seconds
};

}  // namespace tessera::cli
