// Runs a function on every rank of a world of processes, for test programs that mpirun starts: every process
// runs the same tests, and each learns how all ranks ended.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "tessera/communicator.h"

namespace tessera::testing {

// Processes that were started together, and this one's number. Starts MPI if need be.
int mpi_processes();
int mpi_process();
// On how many hosts they are; every process calls it.
int mpi_hosts();

// What run_local() does: rethrows the cause on all processes, fills `messages` per rank.
void run_mpi(const MpiOptions& options, const std::function<void(Communicator)>& rank_main,
             std::vector<std::string>* messages = nullptr);

}  // namespace tessera::testing
