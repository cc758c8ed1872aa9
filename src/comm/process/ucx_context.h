// UCX as Tessera's messages need it: which transport, from which size a message is asked for by its receiver,
// and how soon a peer that is cut off is found.
#pragma once

#include <ucp/api/ucp.h>

#include <string>

namespace tessera::comm {

// Makes a context for tagged messages to so many peers through a network device. The caller gives it back by
// ucp_cleanup().
// Variables of UCX in the environment (UCX_TLS, ...) come before what is set here. EnvironmentError where UCX
// refuses.
ucp_context_h make_context(const std::string& device, int peers);

}  // namespace tessera::comm
