// Which ranks share a host: those with one name and one start of the system.
#include <fstream>
#include <functional>

#include "tessera/communicator.h"
#include "tessera/id_vector.h"
#include "tessera/machine.h"

namespace tessera {
namespace {

std::uint64_t host_hash() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return std::hash<std::string>{}(host_name() + boot);
}

}  // namespace

HostPlace place_on_host(Communicator& world) {
  const std::uint64_t own = host_hash();
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
