#include "src/engine/memory_room.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "src/device/disk_file.h"
#include "src/device/memory_limits.h"
#include "src/device/size_text.h"
#include "tessera/error.h"
#include "tessera/memory_plan.h"

namespace tessera {

namespace {

struct Wish {
  std::int64_t bytes = 0, available_bytes = 0, swap_bytes = 0;
  device::CgroupRoom cgroup;
};

// What takes less of the host's memory, besides fewer ranks.
std::string remedy(const HostMemory& memory) {
  if (memory.directory.empty()) return "shard more, or keep states on the disk";
  if (!memory.of_memory) return "or shard more";
  return fmt::format("shard more, or name a directory on a disk: the file system of '{}' is in memory",
                     memory.directory);
}

// Of ranks that share memory, of which `available_bytes` are there.
void check_shared(const std::vector<Wish>& sharing, std::int64_t available_bytes, const char* where,
                  const HostMemory& own) {
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
      "host or more hosts, {}",
      bytes, size_text(bytes), sharing.size() > 1 ? fmt::format(" for {} ranks", sharing.size()) : "", where,
      size_text(available_bytes),
      swap_bytes > 0 ? fmt::format(" and {} to swap to", size_text(swap_bytes)) : "", size_text(missing),
      remedy(own)));
}

}  // namespace

HostMemory host_memory_of(const EngineOptions& options, const MemoryPlan& plan) {
  HostMemory memory{.bytes = plan.space(Space::host).arena_bytes};
  if (options.device == DeviceType::cpu) memory.bytes += plan.space(Space::device).arena_bytes;
  if (!options.strategy.offload.on_disk()) return memory;
  memory.directory = options.disk_directory;
  memory.of_memory = device::is_of_memory(memory.directory);
  if (memory.of_memory) memory.bytes += plan.space(Space::disk).arena_bytes;
  return memory;
}

void check_memory_room(Communicator& ranks, const HostPlace& host, const HostMemory& memory) {
  const Wish own{memory.bytes, device::system_available_bytes(), device::swap_free_bytes(),
                 device::own_cgroup_room()};
  IdVector<Wish> all(ranks.world());
  ranks.all_gather(&own, all.data(), sizeof own, {"set-up", "room in memory"});
  std::vector<Wish> of_host, of_cgroup;
  std::int64_t available = own.available_bytes, room = own.cgroup.bytes;  // as the least of those that looked
  for (const int rank : host.members) {
    const Wish& wish = all[rank];
    of_host.push_back(wish);
    available = std::min(available, wish.available_bytes);
    if (wish.cgroup.limiting != own.cgroup.limiting) continue;
    of_cgroup.push_back(wish);
    room = std::min(room, wish.cgroup.bytes);
  }
  check_shared(of_host, available, "on this host", memory);
  if (own.cgroup.limiting != 0) check_shared(of_cgroup, room, "within the limit of this cgroup", memory);
}

}  // namespace tessera
