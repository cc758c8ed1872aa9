// How much memory the system and this process's cgroup still have.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>

namespace tessera::device {

// MemAvailable and SwapFree of /proc/meminfo, in bytes.
std::int64_t system_available_bytes();
std::int64_t swap_free_bytes();

// The memory that a cgroup and its parents leave, such as a container's limit.
struct CgroupRoom {
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();  // the largest number if there is no limit
  std::uint64_t limiting = 0;  // identifies on this host the cgroup that sets the limit; 0 if there is none
};
enum class CgroupVersion : std::uint8_t { v1, v2 };
// The room of cgroup `own`, named as in /proc/self/cgroup, below `root`: the minimum, over it and its
// parents, of limit − usage + reclaimable. Reclaimable are cached files and, where it is counted separately,
// reclaimable kernel memory (Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst).
CgroupRoom cgroup_room(const std::filesystem::path& root, const std::filesystem::path& own,
                       CgroupVersion version = CgroupVersion::v2);
// The room of this process's cgroup.
CgroupRoom own_cgroup_room();

}  // namespace tessera::device
