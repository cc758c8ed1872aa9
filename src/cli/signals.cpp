#include "src/cli/signals.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <system_error>

#include "src/cli/progress.h"
#include "tessera/error.h"

namespace tessera::cli {

std::atomic<int> stop_signal{0};

namespace {

// `timeout` and launchers signal a process and then its whole group, microseconds apart: that is one wish.
constexpr std::int64_t kAgain_ns = 1'000'000'000;

std::atomic<std::int64_t> first_at_ns{0};  // when the first signal came
std::array<char, 256> line_text;           // set before any handler is
std::size_t line_bytes = 0;

constexpr std::array kEnding = {SIGTERM, SIGINT, SIGHUP};

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // which a handler may call
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void on_signal(int number) {
  const int before = errno;
  const std::int64_t now = now_ns();
  std::int64_t first = 0;
  if (first_at_ns.compare_exchange_strong(first, now)) {
    stop_signal.store(number);
    if (line_bytes > 0 && ::write(STDERR_FILENO, line_text.data(), line_bytes) < 0) {
      // it is told to nobody, and the run ends all the same
    }
  } else if (now - first >= kAgain_ns) {
    std::signal(number, SIG_DFL);
    std::raise(number);  // once this handler is left
  }
  errno = before;
}

}  // namespace

void keep_signals_off_threads() {
  // Its stack is small, because a handler that does little is all that ever runs on it.
  constexpr std::size_t kStackBytes = 256 << 10;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread{};
  const int error = pthread_create(
      &thread, &attributes,
      [](void*) -> void* {
        for (;;) ::pause();
      },
      nullptr);
  pthread_attr_destroy(&attributes);
  if (error != 0)
    throw EnvironmentError(fmt::format("cannot start the thread that receives signals: {}",
                                       std::generic_category().message(error)));
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : kEnding) sigaddset(&signals, number);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

void catch_signals(const std::string& line) {
  if (!line.empty()) {
    // A progress bar stands on the terminal's line.
    const bool bar = terminal_columns(STDOUT_FILENO) > 0 && ::isatty(STDERR_FILENO) == 1;
    const std::string text = (bar ? "\n" : "") + line + "\n";
    line_bytes = std::min(text.size(), line_text.size());
    std::copy_n(text.begin(), line_bytes, line_text.begin());
  }
  for (const int number : kEnding)  // ignored as `nohup` asks, or a shell of what it runs behind
    if (std::signal(number, on_signal) == SIG_IGN) std::signal(number, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace tessera::cli
