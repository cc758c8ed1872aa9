// Whether a launcher of MPI started this process; asked without MPI, which may be absent.
#include <cstdlib>

#include "tessera/communicator.h"

namespace tessera {

bool launched_by_mpi() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
    if (std::getenv(variable) != nullptr) return true;
  return false;
}

}  // namespace tessera
