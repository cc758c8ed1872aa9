#include "src/engine/memory_room.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "src/device/size_text.h"
#include "tessera/device.h"
#include "tessera/error.h"

namespace tessera {

void check_memory_room(Communicator& ranks, std::int64_t bytes) {
  struct Wish {
    std::int64_t bytes = 0, available_bytes = 0, swap_bytes = 0;
  };
  const Machine machine = read_machine();
  const Wish own{bytes, machine.available_bytes, machine.swap_bytes};
  const HostPlace host = place_on_host(ranks);
  std::vector<Wish> all(static_cast<std::size_t>(ranks.world()));
  ranks.all_gather(&own, all.data(), sizeof own, {"set-up", "room in memory"});
  // The first that looked speaks for all, so that all say the same.
  Wish together = all[static_cast<std::size_t>(host.members.front())];
  together.bytes = 0;
  for (const int rank : host.members) together.bytes += all[static_cast<std::size_t>(rank)].bytes;
  const std::int64_t missing = together.bytes - together.available_bytes - together.swap_bytes;
  if (missing <= 0) return;
  using device::size_text;
  const std::size_t count = host.members.size();
  throw EnvironmentError(fmt::format(
      "cannot take arenas of {} bytes ({}){} on this host: {} are available{}, {} are missing; run fewer "
      "ranks on a "
      "host or more hosts, shard more, or keep states on the disk",
      together.bytes, size_text(together.bytes), count > 1 ? fmt::format(" for {} ranks", count) : "",
      size_text(together.available_bytes),
      together.swap_bytes > 0 ? fmt::format(" and {} to swap to", size_text(together.swap_bytes)) : "",
      size_text(missing)));
}

}  // namespace tessera
