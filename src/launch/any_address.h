// A port on every address of this host.
#pragma once

namespace tessera::launching {

// Binds the socket, and returns what bind(2) does: 0, or -1 with errno. The family is AF_INET or AF_INET6,
// the socket's own.
int bind_to_any(int socket, int family, int port);

}  // namespace tessera::launching
