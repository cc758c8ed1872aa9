// Ranks that a launcher started, each a process.
#pragma once

#include "src/cli/setup.h"
#include "tessera/communicator.h"

namespace tessera::cli {

// Whether this process is one rank of several; else ranks are its threads.
bool ranks_are_processes();
// Then this process's rank in the world of all that were started, else none. UsageError where these are not
// as many as the mesh says, and where they were started without MPI to compute on the CPU.
Communicator world_of_processes(const Setup& setup);

}  // namespace tessera::cli
