// Ranks that a launcher started, each in a process of its own.
#pragma once

#include "src/cli/setup.h"
#include "tessera/communicator.h"

namespace tessera::cli {

// Whether this process is one rank of several. Otherwise ranks are threads of this process.
bool ranks_are_processes();
// Whether this process is the only one, or rank 0 according to the launcher. Of several, only this one
// prints.
bool is_first_process();
// Whether a command that needs no ranks, and finds the same on every host, is another process's to run.
bool left_to_first_process();
// Throws UsageError if ranks are threads of this process, and more than it runs.
void check_threads(const Setup& setup);
// If ranks are processes, this process's rank in the world of all of them; otherwise empty. Throws UsageError
// if their number is not the mesh's.
Communicator world_of_processes(const Setup& setup);

// Checks that all processes have the same configuration and data as rank 0. Otherwise a rank could wait for
// calls that others do not make, or train on samples that others also have. Collective; without a world it
// does nothing. Throws UsageError, the same on all ranks. Paths, and settings of one host or of rank 0 only,
// may differ; budgets, too, unless something is chosen by them, as `budgets_choose` says of a command.
void check_same_run(Communicator world, const Config& config, const Data* data = nullptr,
                    bool budgets_choose = false);

}  // namespace tessera::cli
