#include <fmt/format.h>

#include <memory>

#include "src/launch/agent.h"
#include "src/launch/find_command.h"
#include "src/launch/lead.h"
#include "src/launch/rank_environment.h"
#include "src/launch/watch.h"
#include "tessera/error.h"
#include "tessera/launcher.h"

namespace tessera {
namespace {

void check(const ProcessLaunch& launch) {
  if (const char* const variable = launching::rank_variable_that_is_set())
    throw UsageError(fmt::format(
        "{} is set: another launcher has started this process as a rank; launch from outside, or unset it",
        variable));
  if (launch.command.empty()) throw UsageError("no command; name the program that each rank runs");
  if (launch.ranks < 1) throw UsageError(fmt::format("{} ranks; it must be 1 or more", launch.ranks));
  if (launch.hosts < 1 || launch.host < 0 || launch.host >= launch.hosts)
    throw UsageError(fmt::format("host {} of {}; hosts are numbered from 0", launch.host, launch.hosts));
  if (launch.hosts > 1 && (launch.address.empty() || launch.port < 1 || launch.port > 65'535))
    throw UsageError(fmt::format("host 0 is at '{}', port {}; name its address and a port from 1 to 65535",
                                 launch.address, launch.port));
  // Beats go out four times within it, and the system's clock ticks every few milliseconds.
  constexpr std::chrono::milliseconds kLeast{100};
  if (launch.heartbeat < kLeast)
    throw UsageError(fmt::format("the heartbeat is {} ms; it must be {} or more", launch.heartbeat.count(),
                                 kLeast.count()));
}

}  // namespace

int launch_processes(const ProcessLaunch& launch) {
  using namespace launching;
  check(launch);
  const std::string file = find_command(launch.command.front());
  std::unique_ptr<Peers> peers;
  if (launch.host == 0)
    peers = std::make_unique<Lead>(launch);
  else
    peers = std::make_unique<launching::Agent>(launch);
  return Watch(launch, file, *peers).run();
}

}  // namespace tessera
