// What the cgroup of a process leaves it, as a container's does.
#pragma once

#include <cstdint>
#include <filesystem>

namespace tessera::device {

// Bytes of memory that the cgroup `own`, as /proc/self/cgroup names it below `root`, and those around it
// still allow: memory.max less memory.current, of which files in the cache are given up first. The largest
// number where there is no limit (Linux, Documentation/admin-guide/cgroup-v2.rst).
std::int64_t cgroup_room(const std::filesystem::path& root, const std::filesystem::path& own);

}  // namespace tessera::device
