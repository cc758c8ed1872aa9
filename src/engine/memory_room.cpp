#include "src/engine/memory_room.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "src/device/memory_limits.h"
#include "src/device/size_text.h"
#include "tessera/error.h"

namespace tessera {

namespace {

struct Wish {
  std::int64_t bytes = 0, available_bytes = 0, swap_bytes = 0;
  device::CgroupRoom cgroup;
};

// Of ranks that share memory, of which `available_bytes` are there.
void check_shared(const std::vector<Wish>& sharing, std::int64_t available_bytes, const char* where) {
  using device::size_text;
  std::int64_t bytes = 0, swap_bytes = sharing.front().swap_bytes;
  for (const Wish& wish : sharing) {
    bytes += wish.bytes;
    swap_bytes = std::min(swap_bytes, wish.swap_bytes);
  }
  const std::int64_t missing = bytes - available_bytes - swap_bytes;
  if (missing <= 0) return;
  throw EnvironmentError(fmt::format(
      "cannot take arenas of {} bytes ({}){} {}: {} are available{}, {} are missing; run fewer ranks on a "
      "host or "
      "more hosts, shard more, or keep states on the disk",
      bytes, size_text(bytes), sharing.size() > 1 ? fmt::format(" for {} ranks", sharing.size()) : "", where,
      size_text(available_bytes),
      swap_bytes > 0 ? fmt::format(" and {} to swap to", size_text(swap_bytes)) : "", size_text(missing)));
}

}  // namespace

void check_memory_room(Communicator& ranks, const HostPlace& host, std::int64_t bytes) {
  const Wish own{bytes, device::system_available_bytes(), device::swap_free_bytes(),
                 device::own_cgroup_room()};
  std::vector<Wish> all(static_cast<std::size_t>(ranks.world()));
  ranks.all_gather(&own, all.data(), sizeof own, {"set-up", "room in memory"});
  std::vector<Wish> of_host, of_cgroup;
  std::int64_t available = own.available_bytes, room = own.cgroup.bytes;  // as the least of those that looked
  for (const int rank : host.members) {
    const Wish& wish = all[static_cast<std::size_t>(rank)];
    of_host.push_back(wish);
    available = std::min(available, wish.available_bytes);
    if (wish.cgroup.limiting != own.cgroup.limiting) continue;
    of_cgroup.push_back(wish);
    room = std::min(room, wish.cgroup.bytes);
  }
  check_shared(of_host, available, "on this host");
  if (own.cgroup.limiting != 0) check_shared(of_cgroup, room, "within the limit of this cgroup");
}

}  // namespace tessera
