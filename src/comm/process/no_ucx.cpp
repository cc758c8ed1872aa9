// The twin of ucx.cpp in a build without UCX.
#include "src/comm/process/ucx.h"

namespace tessera {

bool process_between_hosts() { return false; }

std::shared_ptr<comm::Transport> comm::make_transport(Communicator&, const std::string&) {
  throw UnsupportedError(
      "ranks on several hosts: this build has no UCX; install libucx-dev and configure with "
      "-DTESSERA_WITH_UCX=ON, or start them by mpirun");
}

}  // namespace tessera
