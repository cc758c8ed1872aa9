// Which ranks share a host: those with one name and one start of the system.
#include <fstream>
#include <functional>
#include <vector>

#include "tessera/communicator.h"
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
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world.world()));
  world.all_gather(&own, all.data(), sizeof own, {"set-up", "finding hosts"});
  HostPlace place{.rank = 0, .ranks = 0, .members = {}};
  for (int rank = 0; rank < world.world(); ++rank) {
    if (all[static_cast<std::size_t>(rank)] != own) continue;
    place.rank += rank < world.rank() ? 1 : 0;
    ++place.ranks;
    place.members.push_back(rank);
  }
  return place;
}

}  // namespace tessera
