#include "src/engine/disk_room.h"

#include <algorithm>
#include <vector>

#include "src/device/disk_file.h"
#include "tessera/memory_plan.h"

namespace tessera {

void check_disk_room(Communicator& ranks, const std::string& directory, std::int64_t bytes) {
  struct Wish {
    std::int64_t bytes = 0;
    std::int64_t known = 0;
    std::uint64_t system = 0;
    std::int64_t free_bytes = 0;
  } own;
  own.bytes = round_up(bytes, kBlockBytes);
  if (const auto room = device::room_in(directory)) {
    own.known = 1;
    own.system = room->system;
    own.free_bytes = room->free_bytes;
  }
  const HostPlace host = place_on_host(ranks);
  std::vector<Wish> all(static_cast<std::size_t>(ranks.world()));
  ranks.all_gather(&own, all.data(), sizeof own, {"set-up", "room on the disks"});
  if (own.known == 0) return;  // told where the file is made
  std::int64_t together = 0, free = own.free_bytes;
  int count = 0;
  for (const int rank : host.members) {
    const Wish& wish = all[static_cast<std::size_t>(rank)];
    if (wish.known == 0 || wish.system != own.system || wish.bytes == 0) continue;
    together += wish.bytes;
    free = std::min(free, wish.free_bytes);
    ++count;
  }
  if (own.bytes > 0 && together > free) device::refuse_full(directory, together, count, free);
}

}  // namespace tessera
