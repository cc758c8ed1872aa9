// One program, run by one rank or several: as threads, under mpirun or srun, or under a launcher that sets
// variables, such as `tessera launch` or torchrun. Decides at run time which.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "tessera/communicator.h"

namespace tessera {

enum class Launcher : std::uint8_t {
  threads,   // none: this process starts a thread for each rank
  mpi,       // mpirun or srun: each process is a rank
  variables  // RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT: each process is a rank
};

// What started this process. UsageError where two launchers contradict each other (check_launchers()).
Launcher find_launcher();

struct LaunchOptions {
  int threads = 1;                             // ranks where no launcher started this process
  std::chrono::milliseconds deadline{60'000};  // of every wait for a peer
  // Is given one line on how ranks run, on rank 0. Empty: the line goes to stderr.
  std::function<void(const std::string& line)> note = {};
};

// This process's rank of the world that the launcher's variables describe: make_process_world() over
// make_control_world(). Where ranks are on several hosts and the build has no UCX, the latter alone: what
// they exchange then passes through rank 0, which is for what is small. `how`, if given, gets in words which
// it is.
Communicator make_world_of_variables(std::chrono::milliseconds deadline, std::string* how = nullptr);

// Runs rank_main on every rank: on threads of this process (run_local), or as this process's rank of
// make_mpi_world() or make_world_of_variables(). Returns when rank_main has ended, of threads when all have.
// What it throws is thrown here, on threads that of the rank that failed first, after the other ranks were
// told.
void launch(const LaunchOptions& options, const std::function<void(Communicator)>& rank_main);

}  // namespace tessera
