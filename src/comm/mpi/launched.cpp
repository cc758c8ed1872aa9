// Whether a launcher of MPI started this process; asked without MPI, which may be absent.
#include <cstdlib>

#include "tessera/communicator.h"

namespace tessera {

bool launched_by_mpi() {
  // As it is asked first, by make_mpi_world() at the latest: MPI sets these itself where no launcher did.
  static const bool launched = [] {
    for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
      if (std::getenv(variable) != nullptr) return true;
    return false;
  }();
  return launched;
}

}  // namespace tessera
