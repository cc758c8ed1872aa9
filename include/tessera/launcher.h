// Starts a command as the ranks of a world, each a process, on this host or on several, and watches them
// until all have ended; `tessera launch` does this. What a rank itself calls is in tessera/launch.h.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace tessera {

struct ProcessLaunch {
  // The program and its arguments. A program without a slash is looked for in PATH. This process's own
  // program is found by its name in any case.
  std::vector<std::string> command;
  int ranks = 1;  // on this host
  // A rank that is stopped for so long is lost, and so is a host that is not heard of for so long.
  std::chrono::milliseconds heartbeat{2'000};
  // When a rank is lost, the others have this long to end after SIGTERM; then they are killed.
  std::chrono::milliseconds grace{5'000};
  // A folder for rank-R.log of each rank R; rank 0 also writes as without it. Empty: all ranks write to this
  // process's standard output and error.
  std::string output = {};

  // One call on each of several hosts; host 0 leads.
  int hosts = 1, host = 0;
  std::string address = {};  // of host 0, as the others reach it
  int port = 0;              // that host 0 listens on
  std::string id = {};       // equal on all hosts of a launch; a host with another one is refused
  std::chrono::milliseconds start{60'000};  // within which all hosts must be there
};

// Runs the command and returns the exit status of the launch when its last process is gone, on all hosts: 0,
// or that of the first rank that was lost, 128 + N where signal N ended it, and 1 where a host was lost. Each
// loss is told by one line on the standard error. UsageError for options that contradict each other, and
// inside another launcher; EnvironmentError where the command cannot be executed, or hosts do not meet.
//
// The calling process has one thread and no children. While this runs, SIGINT, SIGTERM and SIGHUP go to all
// ranks, SIGTSTP and SIGCONT suspend and continue them, and orphans of ranks become children of this process.
int launch_processes(const ProcessLaunch& launch);

}  // namespace tessera
