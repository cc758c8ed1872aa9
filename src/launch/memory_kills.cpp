#include "src/launch/memory_kills.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace tessera::launching {
namespace {

// The number behind the line's first word, `oom_kill`.
std::int64_t kills_in(const std::string& file) {
  std::ifstream in(file);
  for (std::string word; in >> word;) {
    std::int64_t number = 0;
    if (word == "oom_kill" && in >> number) return number;
  }
  return 0;
}

// The file that counts for a process's control group, of version 2 or of version 1; empty where there is
// none. Lines are "0::/path" and "4:memory:/path".
std::string counter_of(pid_t process) {
  std::ifstream groups(fmt::format("/proc/{}/cgroup", process));
  std::string found;
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string kind = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    std::string file;
    if (kind.empty()) file = "/sys/fs/cgroup" + path + "/memory.events";
    if (kind == "memory") file = "/sys/fs/cgroup/memory" + path + "/memory.oom_control";
    std::error_code missing;
    if (!file.empty() && std::filesystem::exists(file, missing)) found = file;
  }
  return found;
}

}  // namespace

MemoryKills::MemoryKills() : group_before_(0), system_before_(kills_in("/proc/vmstat")) {
  group_ = counter_of(::getpid());
  group_before_ = kills_in(group_);
}

std::string MemoryKills::reason(pid_t process) const {
  constexpr const char* kRoot = "/sys/fs/cgroup/memory//memory.oom_control";
  constexpr const char* kByKernel = "by the kernel for want of memory";
  if (kills_in(group_) > group_before_) return kByKernel;
  // Version 1 moves what has ended to the root. A group that is not the launcher's was made for the rank.
  const std::string group = counter_of(process);
  if (group != group_ && group != kRoot && kills_in(group) > 0) return kByKernel;
  const std::int64_t system = kills_in("/proc/vmstat") - system_before_;
  if (system <= 0) return {};
  return fmt::format(
      "perhaps by the kernel for want of memory, for which it has killed {} on this host meanwhile",
      system == 1 ? "one process" : fmt::format("{} processes", system));
}

}  // namespace tessera::launching
