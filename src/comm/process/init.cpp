// Worlds of processes that another world has brought together: who is on which host, the memory that each
// host's share, and what carries bytes between hosts.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>
#include <new>

#include "src/comm/process/agree.h"
#include "src/comm/process/range.h"
#include "src/comm/process/ucx.h"
#include "src/comm/process/wire.h"
#include "src/comm/staged/backend.h"
#include "tessera/id_vector.h"
#include "tessera/machine.h"

namespace tessera {
namespace {

using comm::SharedRange;
using comm::SharedWorld;

constexpr std::int64_t kSharedBytesPerRank = std::int64_t{8} << 20;

// Processes of one host that see each other: of one start of the system and one PID namespace.
std::uint64_t host_hash() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat space {};
  stat("/proc/self/ns/pid", &space);
  return std::hash<std::string>{}(fmt::format("{}|{}|{}", host_name(), boot, space.st_ino));
}

// The ranks by host: of each, the first rank on its host.
struct Hosts {
  int rank = 0;
  IdVector<int> first_rank;

  int first() const { return first_rank[rank]; }
  int ranks_here() const { return static_cast<int>(std::ranges::count(first_rank, first())); }
  bool several() const { return ranks_here() != first_rank.count(); }
};

// Collective.
Hosts find_hosts(Communicator& host, int ranks_per_host) {
  struct Place {
    std::uint64_t host = 0;
    int global_rank = 0;
  };
  const Place own{ranks_per_host > 0 ? static_cast<std::uint64_t>(host.rank() / ranks_per_host) : host_hash(),
                  host.global_rank()};
  IdVector<Place> all(host.world());
  host.all_gather(&own, all.data(), sizeof own, {"set-up", "finding hosts"});
  Hosts hosts{.rank = host.rank(), .first_rank = IdVector<int>(host.world())};
  for (int rank = 0; rank < host.world(); ++rank) {
    if (all[rank].global_rank != rank)
      throw UsageError("make_process_world: `host` is a group of a world's ranks; give the whole world");
    int first = 0;
    while (all[first].host != all[rank].host) ++first;
    hosts.first_rank[rank] = first;
  }
  return hosts;
}

// Collective: the range of this rank's host, in which its first rank has made a world.
std::shared_ptr<SharedRange> share_range(Communicator& host, const Hosts& hosts, std::int64_t bytes) {
  std::shared_ptr<SharedRange> range;
  const bool first = hosts.first() == hosts.rank;
  comm::do_together(host, "sharing memory", [&] {
    if (!first) return;
    range = std::make_shared<SharedRange>(bytes);
    new (range->base()) SharedWorld(host.world(), bytes);
  });
  const comm::SharedDescriptor own = first ? range->descriptor() : comm::SharedDescriptor();
  IdVector<comm::SharedDescriptor> all(host.world());
  host.all_gather(&own, all.data(), sizeof own, {"set-up", "sharing memory"});
  comm::do_together(host, "mapping memory", [&] {
    if (!first) range = std::make_shared<SharedRange>(all[hosts.first()], bytes);
  });
  range->close();
  return range;
}

}  // namespace

Communicator make_process_world(const Communicator& given, const ProcessOptions& options) {
  Communicator host = given;
  const Hosts hosts = find_hosts(host, options.ranks_per_host);
  const std::int64_t room =
      options.shared_bytes > 0 ? options.shared_bytes : hosts.ranks_here() * kSharedBytesPerRank;
  const auto range = share_range(host, hosts, SharedWorld::range_bytes(host.world(), room));
  std::shared_ptr<comm::Transport> transport;
  if (hosts.several() && options.ranks_per_host == 0 &&
      (options.address == "localhost" || options.address.starts_with("127.")))
    throw UsageError(
        fmt::format("make_process_world: ranks are on several hosts, and ProcessOptions::address is \"{}\"; "
                    "give the address "
                    "of rank 0's host, as in ControlOptions",
                    options.address));
  if (hosts.several()) transport = comm::make_transport(host, options.address);
  const auto world = std::make_shared<comm::StagedWorld>(
      comm::StagedWorld::Place{.shared = static_cast<SharedWorld*>(range->base()),
                               .wire = std::make_shared<comm::HostWire>(host),
                               .transport = transport,
                               .hosts = hosts.several() ? hosts.first_rank : IdVector<int>(),
                               .keeper = range,
                               .rank = host.rank(),
                               .ranks = host.world()},
      comm::StagedOptions{.deadline = host.deadline(),
                          .delay = options.delay,
                          .waiting = options.waiting,
                          .direct = options.direct,
                          .settings = "ProcessOptions"});
  host.barrier({"set-up", "entering"});  // who dies from now on is noticed
  return comm::communicator_of(world);
}

}  // namespace tessera
