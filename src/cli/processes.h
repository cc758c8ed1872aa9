// Ranks that a launcher started, each a process.
#pragma once

#include "src/cli/setup.h"
#include "tessera/communicator.h"

namespace tessera::cli {

// Whether this process is one rank of several; else ranks are its threads.
bool ranks_are_processes();
// Whether this process is the only one, or rank 0 by what the launcher says: of several, it alone speaks.
bool is_first_process();
// Then this process's rank in the world of all that were started, else none. UsageError where these are not
// as many as the mesh says, and where they were started without MPI to compute on the CPU.
Communicator world_of_processes(const Setup& setup);

// Collective over processes; without a world there is nothing to compare. UsageError, the same on all ranks,
// where one was given another configuration than rank 0, or finds other data: it would wait for calls that
// others do not make, or train on samples that others have. Where files lie, and what is of one host or of
// rank 0 alone, each rank has by itself.
void check_same_run(Communicator world, const Config& config, const Data* data = nullptr);

}  // namespace tessera::cli
