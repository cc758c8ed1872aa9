#include "src/launch/rank_environment.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "src/launch/any_address.h"
#include "tessera/error.h"

namespace tessera::launching {
namespace {

std::uint64_t draw() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number))
    throw EnvironmentError(fmt::format("the system gives no random number: {}", std::strerror(errno)));
  return number;
}

// Whether a process could listen there, by IPv6 and IPv4 where the system has both.
bool is_free(int port) {
  for (const int family : {AF_INET6, AF_INET}) {
    const int socket = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket < 0) continue;
    const int bound = bind_to_any(socket, family, port);
    ::close(socket);
    if (bound != 0) return false;
  }
  return true;
}

}  // namespace

std::vector<std::string> marks(const Begin& begin, const HostPlace& place) {
  return {fmt::format("TESSERA_LAUNCH={}", begin.launch), fmt::format("GROUP_RANK={}", place.host)};
}

std::vector<std::string> rank_variables(const Begin& begin, const HostPlace& place, int local) {
  std::vector<std::string> variables = marks(begin, place);
  variables.push_back(fmt::format("RANK={}", begin.first_rank + local));
  variables.push_back(fmt::format("WORLD_SIZE={}", begin.world));
  variables.push_back(fmt::format("LOCAL_RANK={}", local));
  variables.push_back(fmt::format("LOCAL_WORLD_SIZE={}", place.ranks));
  variables.push_back(fmt::format("GROUP_WORLD_SIZE={}", place.hosts));
  variables.push_back(fmt::format("MASTER_ADDR={}", begin.address));
  variables.push_back(fmt::format("MASTER_PORT={}", begin.port));
  return variables;
}

std::vector<std::string> with_variables(const std::vector<std::string>& variables) {
  std::vector<std::string> all = variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    // torchrun's, which would have ranks look for its own store at the port.
    if (name == "TORCHELASTIC_USE_AGENT_STORE" || name == "TORCHELASTIC_RUN_ID") continue;
    const auto is_named = [&](const std::string& one) {
      return std::string_view(one).substr(0, one.find('=')) == name;
    };
    if (std::ranges::none_of(variables, is_named)) all.emplace_back(text);
  }
  return all;
}

std::string draw_launch_id() { return fmt::format("{:016x}", draw()); }

int free_port() {
  // Below the ports that the system gives to connections: one of those could be taken until rank 0 listens.
  constexpr int kFirst = 20'000, kTries = 200;
  int system_first = 32'768;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> system_first;
  const int last = system_first > kFirst + kTries ? std::min(system_first, 60'000) : 60'000;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const int port = kFirst + static_cast<int>(draw() % static_cast<std::uint64_t>(last - kFirst));
    if (is_free(port)) return port;
  }
  throw EnvironmentError(fmt::format("none of {} ports from {} to {} is free", kTries, kFirst, last));
}

const char* rank_variable_that_is_set() {
  for (const char* variable :
       {"RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK"})
    if (std::getenv(variable) != nullptr) return variable;
  return nullptr;
}

}  // namespace tessera::launching
