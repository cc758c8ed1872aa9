#include "src/comm/process/own_address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "src/comm/process/agree.h"
#include "tessera/error.h"

namespace tessera::comm {
namespace {

const in_addr& ipv4(const sockaddr* address) {
  return reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
}
const in6_addr& ipv6(const sockaddr* address) {
  return reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
}

bool same(const sockaddr* a, const sockaddr* b) {
  if (a == nullptr || a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET) return ipv4(a).s_addr == ipv4(b).s_addr;
  return a->sa_family == AF_INET6 && std::memcmp(&ipv6(a), &ipv6(b), sizeof(in6_addr)) == 0;
}

}  // namespace

bool HostAddress::is_loopback() const {
  if (address.ss_family == AF_INET) return ntohl(ipv4(get()).s_addr) >> 24 == 127;
  return address.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&ipv6(get()));
}

void HostAddress::take_any_port() {
  if (address.ss_family == AF_INET) reinterpret_cast<sockaddr_in&>(address).sin_port = 0;
  if (address.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6&>(address).sin6_port = 0;
}

std::string HostAddress::text() const {
  char words[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) inet_ntop(AF_INET, &ipv4(get()), words, sizeof words);
  if (address.ss_family == AF_INET6) inet_ntop(AF_INET6, &ipv6(get()), words, sizeof words);
  return words;
}

std::string HostAddress::device() const {
  if (is_loopback()) return "lo";  // which has all of 127.0.0.0/8
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> keeper(all, freeifaddrs);
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next)
    if (same(one->ifa_addr, get())) return one->ifa_name;
  return {};
}

// A datagram socket that is connected has chosen its way, and sent nothing.
HostAddress address_towards(const std::string& other) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  constexpr const char* kAnyPort = "9";
  if (const int code = getaddrinfo(other.c_str(), kAnyPort, &hints, &found); code != 0)
    throw EnvironmentError(fmt::format("the address of '{}' is not known: {}", other, gai_strerror(code)));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> keeper(found, freeaddrinfo);
  int code = 0;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    HostAddress own{.bytes = sizeof own.address};
    const int probe = socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const bool there = probe >= 0 && connect(probe, one->ai_addr, one->ai_addrlen) == 0 &&
                       getsockname(probe, reinterpret_cast<sockaddr*>(&own.address), &own.bytes) == 0;
    code = errno;
    if (probe >= 0) close(probe);
    own.take_any_port();
    if (there) return own;
  }
  throw EnvironmentError(fmt::format("there is no way to '{}': {}", other, std::strerror(code)));
}

HostAddress own_address(Communicator& host, const std::string& rank_zero) {
  HostAddress own;
  constexpr const char* kWhat = "addresses of hosts";
  do_together(host, kWhat, [&] { own = address_towards(rank_zero); });
  IdVector<HostAddress> all(host.world());
  host.all_gather(&own, all.data(), sizeof own, {"set-up", kWhat});
  do_together(host, kWhat, [&] {
    const auto elsewhere =
        std::ranges::find_if(all, [](const HostAddress& one) { return !one.is_loopback(); });
    if (own.is_loopback() && elsewhere != all.end()) own = address_towards(elsewhere->text());
  });
  return own;
}

}  // namespace tessera::comm
