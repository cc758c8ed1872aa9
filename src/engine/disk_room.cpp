#include "src/engine/disk_room.h"

#include <algorithm>
#include <vector>

#include "src/device/disk_file.h"
#include "tessera/memory_plan.h"

namespace tessera {

void check_disk_room(Communicator& ranks, const HostPlace& host, const std::string& directory,
                     std::int64_t bytes) {
  struct Wish {
    std::int64_t bytes = 0;  // 0, too, where the room cannot be told: where the file is made it will be
    device::DiskRoom room;
  } own;
  if (const auto room = device::room_in(directory))
    own = {.bytes = round_up(bytes, kBlockBytes), .room = *room};
  IdVector<Wish> all(ranks.world());
  ranks.all_gather(&own, all.data(), sizeof own, {"set-up", "room on the disks"});
  if (own.bytes == 0) return;
  std::int64_t together = 0, free = own.room.free_bytes;
  int count = 0;
  for (const int rank : host.members) {
    const Wish& wish = all[rank];
    if (wish.bytes == 0 || wish.room.system != own.room.system) continue;
    together += wish.bytes;
    free = std::min(free, wish.room.free_bytes);
    ++count;
  }
  if (together > free) device::refuse_full(directory, together, count, free);
}

}  // namespace tessera
