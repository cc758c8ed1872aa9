#include "src/cli/work_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "src/cli/output.h"
#include "src/cli/progress.h"

namespace tessera::cli {

WorkProgress::WorkProgress(std::string label)
    : label_(std::move(label)), terminal_(terminal_columns(STDOUT_FILENO) > 0) {}

void WorkProgress::show(std::int64_t done, std::int64_t all,
                        const std::function<std::string(double seconds)>& tells) {
  constexpr double kRedraw = 0.2;  // seconds
  const int percent = all > 0 ? static_cast<int>(100 * done / all) : 100;
  const double seconds = seconds_since(start_);
  if (percent == percent_ && (!terminal_ || seconds < next_)) return;
  if (!terminal_ && percent < percent_ + 10 && percent < 100) return;
  percent_ = percent;
  next_ = seconds + kRedraw;
  const std::string left = percent < 100 && done > 0
                               ? fmt::format("  {} left", duration(seconds * static_cast<double>(all - done) /
                                                                   static_cast<double>(done)))
                               : "";
  const std::string line =
      fmt::format("{}  {:>3}%  {}{}", label_, percent, tells(std::max(seconds, 1e-3)), left);
  fmt::print("{}{}{}", terminal_ ? "\r" : "", line, terminal_ ? "\x1b[K" : "\n");
  shown_ = terminal_;
  std::fflush(stdout);
}

void WorkProgress::finish() {
  if (shown_) fmt::print("\n");
  shown_ = false;
}

}  // namespace tessera::cli
