#include "src/launch/any_address.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>

namespace tessera::launching {

int bind_to_any(int socket, int family, int port) {
  const in_port_t number = htons(static_cast<std::uint16_t>(port));
  if (family == AF_INET6) {
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_port = number;
    return ::bind(socket, reinterpret_cast<const sockaddr*>(&any), sizeof any);
  }
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = number;
  return ::bind(socket, reinterpret_cast<const sockaddr*>(&any), sizeof any);
}

}  // namespace tessera::launching
