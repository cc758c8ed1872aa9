#include "src/cli/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "src/cli/output.h"
#include "src/cli/utilisation.h"

namespace tessera::cli {

namespace {

constexpr int kLines = 25;       // of a whole run, where stdout is no terminal
constexpr int kBarWidth = 24;    // characters, where the terminal is wide enough
constexpr double kRedraw = 0.1;  // seconds

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// What a line says, from what matters most.
enum class Field : std::uint8_t {
  step,
  loss,
  memory,
  tokens,
  left,
  skipped,
  hidden,
  flops,
  time,
  rate,
  none
};

struct Shown {
  Field field;
  std::string text;
};

// Those that matter more than `end`.
std::string joined(const std::vector<Shown>& all, Field end) {
  std::string line;
  for (const Shown& shown : all)
    if (shown.field < end) line += (line.empty() ? "" : "  ") + shown.text;
  return line;
}

// What matters most, as far as `width` columns hold it whole.
std::string fitted(const std::vector<Shown>& all, std::size_t width) {
  Field end = Field::none;
  std::string line = joined(all, end);
  while (line.size() > width) {
    end = static_cast<Field>(static_cast<int>(end) - 1);
    line = joined(all, end);
  }
  return line;
}

std::string steps_text(const ProgressLimits& limits, std::int64_t step) {
  return limits.steps > 0 ? fmt::format("step {}/{}", step, limits.steps) : fmt::format("step {}", step);
}

// In the order of the line.
std::vector<Shown> shown_of(const ProgressLimits& limits, const ProgressState& state) {
  std::vector<Shown> all = {{Field::step, steps_text(limits, state.step)}};
  if (limits.seconds > 0.0)
    all.push_back({Field::time, duration(state.elapsed) + "/" + duration(limits.seconds)});
  all.push_back({Field::loss, "loss " + loss_text(state.result.loss)});
  all.push_back({Field::rate, fmt::format("rate {:.2e}", state.result.learning_rate)});
  all.push_back({Field::tokens, fmt::format("{:.0f} tokens/s", state.tokens_per_second)});
  if (state.utilisation)
    all.push_back({Field::flops, fmt::format("MFU {:.1f}%", *state.utilisation * 100.0)});
  else if (state.model_flops > 0.0)
    all.push_back({Field::flops, flops_text(state.model_flops)});
  if (state.hidden) all.push_back({Field::hidden, fmt::format("hidden {:.0f}%", *state.hidden * 100.0)});
  if (state.memory) all.push_back({Field::memory, *state.memory});
  if (!state.result.applied) all.push_back({Field::skipped, "(skipped)"});
  const double done = fraction_done(limits, state.step, state.elapsed);
  if (done > 0.0 && done < 1.0)
    all.push_back({Field::left, duration(state.elapsed * (1.0 - done) / done) + " left"});
  return all;
}

}  // namespace

int terminal_columns(int file) {
  const char* const kind = std::getenv("TERM");
  winsize window{};
  if (::isatty(file) != 1 || (kind != nullptr && std::string_view(kind) == "dumb")) return 0;
  return ::ioctl(file, TIOCGWINSZ, &window) == 0 ? window.ws_col : 0;
}

double fraction_done(const ProgressLimits& limits, std::int64_t step, double elapsed) {
  double part = 0.0;
  if (limits.steps > limits.first_step)
    part =
        static_cast<double>(step - limits.first_step) / static_cast<double>(limits.steps - limits.first_step);
  if (limits.seconds > 0.0) part = std::max(part, elapsed / limits.seconds);
  return std::clamp(part, 0.0, 1.0);
}

Progress::Progress(const ProgressLimits& limits) : Progress(limits, terminal_columns(STDOUT_FILENO)) {}

// As wide as the line leaves room for; a line that wraps could not be drawn over.
std::string Progress::bar(double done) const {
  const int width = std::min(kBarWidth, columns_ - 4 - static_cast<int>(last_status_.size()));
  if (width < 4) return "";
  const int filled = static_cast<int>(done * width);
  return fmt::format("[{}{}] ", std::string(static_cast<std::size_t>(filled), '#'),
                     std::string(static_cast<std::size_t>(width - filled), '.'));
}

std::string Progress::status(const ProgressState& state) const {
  // The last column stays free: some terminals go on to the next line behind it.
  const std::size_t width = columns_ > 0 ? static_cast<std::size_t>(columns_ - 1) : std::string::npos;
  return fitted(shown_of(limits_, state), width);
}

void Progress::step(const ProgressState& state) {
  const double done = fraction_done(limits_, state.step, state.elapsed);
  last_status_ = status(state);
  if (columns_ > 0) {
    if (done < 1.0 && last_drawn_ >= 0.0 && state.elapsed - last_drawn_ < kRedraw) return;
    last_drawn_ = state.elapsed;
    print(fmt::format("\r{}{}\033[K", bar(done), last_status_));
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
