#include "src/cli/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "src/cli/output.h"
#include "src/cli/utilisation.h"

namespace tessera::cli {

namespace {

constexpr int kLines = 25;       // of a whole run, where stdout is no terminal
constexpr int kBarWidth = 24;    // characters, where the terminal is wide enough
constexpr int kColumns = 80;     // of a terminal that does not say
constexpr double kRedraw = 0.1;  // seconds

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// 0 where stdout is no terminal.
int terminal_columns() {
  if (::isatty(STDOUT_FILENO) != 1) return 0;
  winsize window{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 ? window.ws_col : kColumns;
}

}  // namespace

double fraction_done(const ProgressLimits& limits, std::int64_t step, double elapsed) {
  double part = 0.0;
  if (limits.steps > limits.first_step)
    part =
        static_cast<double>(step - limits.first_step) / static_cast<double>(limits.steps - limits.first_step);
  if (limits.seconds > 0.0) part = std::max(part, elapsed / limits.seconds);
  return std::clamp(part, 0.0, 1.0);
}

Progress::Progress(const ProgressLimits& limits) : Progress(limits, terminal_columns()) {}

// As wide as the line leaves room for; a line that wraps could not be drawn over.
std::string Progress::bar(double done) const {
  const int width = std::min(kBarWidth, columns_ - 4 - static_cast<int>(last_status_.size()));
  if (width < 4) return "";
  const int filled = static_cast<int>(done * width);
  return fmt::format("[{}{}] ", std::string(static_cast<std::size_t>(filled), '#'),
                     std::string(static_cast<std::size_t>(width - filled), '.'));
}

std::string Progress::status(const ProgressState& state) const {
  std::string text = limits_.steps > 0 ? fmt::format("step {}/{}", state.step, limits_.steps)
                                       : fmt::format("step {}", state.step);
  if (limits_.seconds > 0.0)
    text += fmt::format("  {}/{}", duration(state.elapsed), duration(limits_.seconds));
  text += fmt::format("  loss {:.4f}  rate {:.2e}  {:.0f} tokens/s", state.result.loss,
                      state.result.learning_rate, state.tokens_per_second);
  if (state.utilisation)
    text += fmt::format("  MFU {:.1f}%", *state.utilisation * 100.0);
  else if (state.model_flops > 0.0)
    text += "  " + flops_text(state.model_flops);
  if (state.hidden) text += fmt::format("  hidden {:.0f}%", *state.hidden * 100.0);
  if (!state.result.applied) text += "  (skipped)";
  const double done = fraction_done(limits_, state.step, state.elapsed);
  if (done > 0.0 && done < 1.0)
    text += fmt::format("  {} left", duration(state.elapsed * (1.0 - done) / done));
  return text;
}

void Progress::step(const ProgressState& state) {
  const double done = fraction_done(limits_, state.step, state.elapsed);
  last_status_ = status(state);
  if (columns_ > 0) {
    if (done < 1.0 && last_drawn_ >= 0.0 && state.elapsed - last_drawn_ < kRedraw) return;
    last_drawn_ = state.elapsed;
    const std::string line = (bar(done) + last_status_).substr(0, static_cast<std::size_t>(columns_ - 1));
    print(fmt::format("\r{}\033[K", line));
    bar_shown_ = true;
    return;
  }
  const int due = static_cast<int>(done * kLines);
  if (lines_ > 0 && due < lines_) return;
  lines_ = due + 1;
  print(last_status_ + "\n");
  last_status_.clear();
}

void Progress::note(const std::string& line) {
  print(bar_shown_ ? "\r\033[K" + line + "\n" : line + "\n");
  bar_shown_ = false;
}

void Progress::finish() {
  if (bar_shown_)
    print("\n");
  else if (!last_status_.empty())  // the last step, where its line was not due
    print(last_status_ + "\n");
  bar_shown_ = false;
  last_status_.clear();
}

}  // namespace tessera::cli
