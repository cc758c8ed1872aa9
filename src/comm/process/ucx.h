// How bytes travel between hosts: by UCX.
#pragma once

#include <memory>
#include <string>

#include "src/comm/staged/transport.h"
#include "tessera/communicator.h"

namespace tessera::comm {

// Collective over `host`, whose ranks connect within its deadline, each with each; `rank_zero` is the address
// of rank 0's host. EnvironmentError where UCX cannot be loaded or finds no way to a peer, the same on all
// ranks; UnsupportedError in a build without UCX.
std::shared_ptr<Transport> make_transport(Communicator& host, const std::string& rank_zero);

}  // namespace tessera::comm
