// The twin of what is in this folder, in a build without asio.
#include "tessera/communicator.h"

namespace tessera {

bool control_available() { return false; }

Communicator make_control_world(const ControlOptions&) {
  throw UnsupportedError(
      "ranks as processes without MPI: this build has no asio; install libasio-dev and configure with "
      "-DTESSERA_WITH_ASIO=ON");
}

}  // namespace tessera
