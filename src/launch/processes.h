// What the system says of processes in /proc. A process may be gone at any moment; then it is not found.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace tessera::launching {

// Whether a signal such as SIGSTOP or SIGTSTP stopped it. One that a debugger holds is not stopped.
bool is_stopped(pid_t process);
// Those whose parent is this process, ended ones that nobody has waited for included.
std::vector<pid_t> children();
// Those in whose environment each of these "NAME=value" stands. Of other users' processes none is found.
std::vector<pid_t> processes_with(const std::vector<std::string>& variables);

}  // namespace tessera::launching
