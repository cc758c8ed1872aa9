// How a process ended, in words and as an exit status, and what is lost with it. Knows no other process.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

namespace tessera::launching {

struct Ending {
  int status = 0;             // its exit status, where no signal ended it
  int signal = 0;             // that killed it, or that it was stopped by
  bool stopped = false;       // it is there, and stands still
  std::string for_want_of{};  // "for want of memory", where the kernel says so

  bool well() const { return status == 0 && signal == 0; }
  // The status that a shell reports: 128 + N for signal N.
  int exit_status() const { return signal != 0 ? 128 + signal : status; }
  // "was killed by signal 9 (SIGKILL)".
  std::string text(std::chrono::milliseconds heartbeat) const;
};

// A rank or a host without which the world cannot go on.
struct Loss {
  int host = 0;
  int rank = -1;  // -1: the whole host
  pid_t process = 0;
  std::string what{};  // behind "rank 3": "was killed by signal 9 (SIGKILL)"
  int status = 1;      // of the launch
  // Nothing that a rank does because another one is lost: peers of a lost rank end with an error or abort.
  bool first_cause = false;

  // "rank 3 on host 1 (pid 4242) was killed by signal 9 (SIGKILL)"; the host is named among several.
  std::string line(int hosts) const;
};

Loss loss_of(const Ending& ending, int rank, int host, pid_t process, std::chrono::milliseconds heartbeat);

// "SIGKILL"; "signal 64" where it has no name.
std::string signal_name(int number);
// "2 s", "0.5 s".
std::string seconds_text(std::chrono::milliseconds time);

}  // namespace tessera::launching
