#include "src/launch/ending.h"

#include <fmt/format.h>

#include <csignal>
#include <cstring>

namespace tessera::launching {

std::string signal_name(int number) {
  const char* const name = ::sigabbrev_np(number);
  return name == nullptr ? fmt::format("signal {}", number) : fmt::format("SIG{}", name);
}

std::string seconds_text(std::chrono::milliseconds time) {
  return fmt::format("{:g} s", static_cast<double>(time.count()) / 1000.0);
}

std::string Ending::text(std::chrono::milliseconds heartbeat) const {
  if (stopped) return fmt::format("was stopped for {}", seconds_text(heartbeat));
  if (signal == 0) return fmt::format("ended with status {}", status);
  return fmt::format("was killed by signal {} ({}){}{}", signal, signal_name(signal),
                     for_want_of.empty() ? "" : ", ", for_want_of);
}

std::string Loss::line(int hosts) const {
  if (rank < 0) return fmt::format("host {} {}", host, what);
  const std::string place = hosts > 1 ? fmt::format(" on host {}", host) : "";
  const std::string pid = process > 0 ? fmt::format(" (pid {})", process) : "";
  return fmt::format("rank {}{}{} {}", rank, place, pid, what);
}

Loss loss_of(const Ending& ending, int rank, int host, pid_t process, std::chrono::milliseconds heartbeat) {
  return {.host = host,
          .rank = rank,
          .process = process,
          .what = ending.text(heartbeat),
          .status = ending.exit_status(),
          .first_cause = ending.stopped || (ending.signal != 0 && ending.signal != SIGABRT)};
}

}  // namespace tessera::launching
