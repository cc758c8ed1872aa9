// fault_program HOW RANKS_PER_HOST: ranks (see MpiOptions) that communicate as a trainer's do, until rank 1
// throws, exits, vanishes, is killed or stalls, or `unreachable`: MPI refuses to send to it; where it is
// `absent` it does not even start MPI. Every other rank ends with a non-zero status and says why, unless the
// launcher ends it first.
#include <mpi.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "tessera/communicator.h"
#include "tessera/device.h"

namespace {

std::atomic<bool> unreachable = false;  // rank 1

}  // namespace

// As where a connection is lost: Tessera's calls of MPI's own function come here.
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  if (unreachable && to == 1) return MPI_ERR_OTHER;
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

namespace {

void misbehave(const std::string& how) {
  if (how == "throw") throw std::runtime_error("the disk is full");
  if (how == "exit") std::exit(0);
  if (how == "vanish") std::_Exit(3);
  if (how == "kill") raise(SIGKILL);
  if (how == "stall") std::this_thread::sleep_for(std::chrono::minutes(5));
}

// Few bytes go through shared buffers, many are read from peers' arenas where they are on one host.
void run(tessera::Communicator world, const std::string& how) {
  constexpr std::int64_t kFew = 400, kMany = 400'000;
  tessera::Arena arena({.bytes = world.world() * kMany, .shared = world.wants_shared_arena()});
  world.register_arena(arena);
  for (int round = 0; round < 2000; ++round) {
    if (round == 50 && how == "unreachable") unreachable = true;
    if (round == 50 && world.rank() == 1) misbehave(how);
    for (const std::int64_t bytes : {kFew, kMany})
      world.all_gather(arena.base() + world.rank() * bytes, arena.base(), bytes, {.unit = "block.1"});
  }
}

// Before MPI has started, by the variables of Open MPI, and of MPICH and Slurm.
bool is_rank_1() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"})
    if (const char* rank = std::getenv(name)) return std::string(rank) == "1";
  return false;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string how = count > 1 ? arguments[1] : "";
  tessera::MpiOptions options{.deadline = std::chrono::seconds(2),
                              .ranks_per_host = count > 2 ? std::atoi(arguments[2]) : 0};
  if (how == "absent") {
    options.start_deadline = std::chrono::seconds(3);
    if (is_rank_1()) std::this_thread::sleep_for(std::chrono::minutes(5));
  }
  tessera::Communicator world = tessera::make_mpi_world(options);
  try {
    run(world, how);
  } catch (const std::exception& error) {
    world.fail(error.what());
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(1);
  }
  return 0;
}
