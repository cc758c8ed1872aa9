// One process that a command runs in, as the leader of a process group of its own: what it starts belongs to
// the group, and a signal reaches all of it. Who waits for the process is host_ranks.h.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

namespace tessera::launching {

struct ProcessStart {
  std::string file;                      // as find_command() found it
  std::vector<std::string> words;        // the program as it was named, and its arguments
  std::vector<std::string> environment;  // "NAME=value"
  int in = 0, out = 1, err = 2;          // its standard streams
  sigset_t signals{};                    // that it blocks
};

// Starts it and returns when the command runs in it. The kernel kills it when this process ends, however that
// comes. EnvironmentError, and there is no process, where the command cannot be executed.
pid_t start_process(const ProcessStart& start);

// Signals the process's group. The process was not waited for yet, so that its number is nobody else's.
void signal_group(pid_t leader, int number) noexcept;

}  // namespace tessera::launching
