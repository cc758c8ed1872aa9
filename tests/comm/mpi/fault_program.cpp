// fault_program HOW RANKS_PER_HOST: ranks (see MpiOptions) that communicate as a trainer's do, until rank 1
// throws, exits, vanishes, is killed or stalls, or `unreachable`: MPI refuses to send to it; where it is
// `absent` it does not even start MPI. Every other rank ends with a non-zero status and says why, unless the
// launcher ends it first.
#include <mpi.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/comm/faults.h"

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
  tessera::testing::run_to_fault(tessera::make_mpi_world(options), how,
                                 [&] { unreachable = how == "unreachable"; });
  return 0;
}
