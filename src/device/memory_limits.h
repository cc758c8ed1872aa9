// How much memory the system, and the cgroup of this process, still have.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>

namespace tessera::device {

// MemAvailable and SwapFree of /proc/meminfo, in bytes.
std::int64_t system_available_bytes();
std::int64_t swap_free_bytes();

// What a cgroup and those around it leave, as a container's limit does.
struct CgroupRoom {
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();  // that, where there is no limit
  std::uint64_t limiting =
      0;  // tells the cgroup whose limit it is from others of this host; 0 where there is none
};
enum class CgroupVersion : std::uint8_t { v1, v2 };
// Of the cgroup `own`, as /proc/self/cgroup names it below `root`: the least of its limit less what it has
// taken, of which what files in caches and, as far as it is counted apart, reclaimable kernel memory take is
// given up first (Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst).
CgroupRoom cgroup_room(const std::filesystem::path& root, const std::filesystem::path& own,
                       CgroupVersion version = CgroupVersion::v2);
// Of this process.
CgroupRoom own_cgroup_room();

}  // namespace tessera::device
