// Worlds of processes that another world has brought together: who is on which host, the memory that each
// host's share, and what carries bytes between hosts.
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <new>

#include "src/comm/process/agree.h"
#include "src/comm/process/range.h"
#include "src/comm/process/ucx.h"
#include "src/comm/process/wire.h"
#include "src/comm/staged/backend.h"
#include "src/comm/staged/hosts.h"
#include "src/comm/this_host.h"
#include "tessera/id_vector.h"

namespace tessera {
namespace {

using comm::RankHosts;
using comm::SharedRange;
using comm::SharedWorld;

// Processes of one host that see each other: of one start of the system and one PID namespace.
std::uint64_t hash_of_host() {
  return std::hash<std::string>{}(fmt::format("{}|{}", comm::this_host(), comm::pid_namespace()));
}

// Collective.
RankHosts find_hosts(Communicator& host, int ranks_per_host) {
  struct Place {
    std::uint64_t host = 0;
    int global_rank = 0;
  };
  const Place own{
      ranks_per_host > 0 ? static_cast<std::uint64_t>(host.rank() / ranks_per_host) : hash_of_host(),
      host.global_rank()};
  IdVector<Place> all(host.world());
  host.all_gather(&own, all.data(), sizeof own, {"set-up", "finding hosts"});
  RankHosts hosts{.rank = host.rank(), .first_rank = IdVector<int>(host.world())};
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
std::shared_ptr<SharedRange> share_range(Communicator& host, const RankHosts& hosts, std::int64_t bytes) {
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
  const RankHosts hosts = find_hosts(host, options.ranks_per_host);
  const auto range = share_range(host, hosts, hosts.range_bytes(options.shared_bytes));
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
                               .hosts = hosts,
                               .keeper = range},
      comm::StagedOptions{.deadline = host.deadline(),
                          .delay = options.delay,
                          .waiting = options.waiting,
                          .direct = options.direct,
                          .settings = "ProcessOptions"});
  host.barrier({"set-up", "entering"});  // who dies from now on is noticed
  return comm::communicator_of(world);
}

}  // namespace tessera
