// By which address other hosts reach this one.
#pragma once

#include <sys/socket.h>

#include <string>

#include "tessera/communicator.h"

namespace tessera::comm {

struct HostAddress {
  sockaddr_storage address = {};  // IPv4 or IPv6
  socklen_t bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  bool is_loopback() const;
  void take_any_port();
  std::string text() const;    // "10.0.0.7"
  std::string device() const;  // the network device that has it: "eth0"; empty where none has
};

// The address of this host from which packets go to `other`, a name or an address; nothing is sent.
// EnvironmentError where there is no way, or the name is not known.
HostAddress address_towards(const std::string& other);

// Collective over `host`: this rank's, by the way to `rank_zero`. Rank 0 may know its own name by a loopback
// address, as in /etc/hosts of Debian; then by the way to the first rank that is elsewhere.
HostAddress own_address(Communicator& host, const std::string& rank_zero);

}  // namespace tessera::comm
