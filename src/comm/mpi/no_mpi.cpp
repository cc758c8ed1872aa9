// The twin of init.cpp in a build without MPI.
#include "tessera/communicator.h"

namespace tessera {

bool mpi_available() { return false; }

Communicator make_mpi_world(const MpiOptions&) {
  throw UnsupportedError(
      "ranks as processes: this build has no MPI; install Open MPI or MPICH and configure with "
      "-DTESSERA_WITH_MPI=ON");
}

}  // namespace tessera
