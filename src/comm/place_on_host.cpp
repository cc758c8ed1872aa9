// Which ranks share a host: those with one name and one start of the system.
#include <fstream>
#include <functional>

#include "src/comm/this_host.h"
#include "tessera/communicator.h"
#include "tessera/id_vector.h"
#include "tessera/machine.h"

namespace tessera {

std::string comm::this_host() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return host_name() + boot;
}

HostPlace place_on_host(Communicator& world) {
  const std::uint64_t own = std::hash<std::string>{}(comm::this_host());
  IdVector<std::uint64_t> all(world.world());
  world.all_gather(&own, all.data(), sizeof own, {"set-up", "finding hosts"});
  HostPlace place{.rank = 0, .ranks = 0, .members = {}};
  for (int rank = 0; rank < world.world(); ++rank) {
    if (all[rank] != own) continue;
    place.rank += rank < world.rank() ? 1 : 0;
    ++place.ranks;
    place.members.push_back(rank);
  }
  return place;
}

}  // namespace tessera
