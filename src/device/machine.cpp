// What the operating system says: memory, cores, instruction set; and the threads it runs.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "src/device/memory_limits.h"
#include "tessera/error.h"
#include "tessera/machine.h"

namespace tessera {
namespace {

// The text behind "key" and a colon in a /proc file, without the blanks around it; empty where there is none.
std::string field_of(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const std::size_t colon = line.find_first_not_of(" \t", key.size());
    if (colon == std::string::npos || line[colon] != ':') continue;
    const std::size_t first = line.find_first_not_of(" \t", colon + 1);
    return first == std::string::npos ? "" : line.substr(first);
  }
  return "";
}

std::int64_t bytes_field(const char* path, const std::string& key) {
  std::int64_t kibibytes = 0;
  std::istringstream(field_of(path, key)) >> kibibytes;
  return kibibytes * 1024;
}

std::string widest_instruction_set() {
  std::istringstream words(field_of("/proc/cpuinfo", "flags"));
  std::vector<std::string> flags;
  for (std::string word; words >> word;) flags.push_back(word);
  const auto has = [&](const char* flag) {
    return std::find(flags.begin(), flags.end(), flag) != flags.end();
  };
  if (has("avx512f"))
    return std::string("AVX-512") + (has("avx512_bf16") ? " BF16" : "") + (has("amx_bf16") ? ", AMX" : "");
  if (has("avx2")) return has("f16c") ? "AVX2 F16C" : "AVX2";
  return has("sse4_1") ? "SSE4" : "baseline";
}

bool huge_pages_allowed() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string text;
  return std::getline(file, text) && text.find("[never]") == std::string::npos;
}

std::int64_t number_in(const std::filesystem::path& path) {
  std::int64_t number = -1;  // also of "max"
  return std::ifstream(path) >> number ? number : -1;
}

// Where the kernel tells of a cgroup's memory.
struct CgroupFiles {
  const char *most, *taken;
  std::array<std::string_view, 3> reclaimable;  // lines of memory.stat
};
constexpr CgroupFiles kFilesOfV1 = {"memory.limit_in_bytes",
                                    "memory.usage_in_bytes",
                                    {"total_inactive_file", "total_active_file", "slab_reclaimable"}};
constexpr CgroupFiles kFilesOfV2 = {
    "memory.max", "memory.current", {"inactive_file", "active_file", "slab_reclaimable"}};
constexpr std::int64_t kNoLimit = std::int64_t{1} << 60;  // version 1 says so by a number beyond any memory

}  // namespace

namespace device {

std::int64_t system_available_bytes() { return bytes_field("/proc/meminfo", "MemAvailable"); }
std::int64_t swap_free_bytes() { return bytes_field("/proc/meminfo", "SwapFree"); }

CgroupRoom cgroup_room(const std::filesystem::path& root, const std::filesystem::path& own,
                       CgroupVersion version) {
  const CgroupFiles& files = version == CgroupVersion::v1 ? kFilesOfV1 : kFilesOfV2;
  CgroupRoom least;
  const std::filesystem::path relative = own.relative_path();
  auto part = relative.begin();
  for (std::filesystem::path at = root;; at /= *part++) {
    const std::int64_t most = number_in(at / files.most), taken = number_in(at / files.taken);
    std::int64_t reclaimable = 0, value = 0;
    std::ifstream statistics(at / "memory.stat");
    for (std::string key; statistics >> key >> value;)
      if (std::ranges::find(files.reclaimable, key) != files.reclaimable.end()) reclaimable += value;
    const std::int64_t room = std::max<std::int64_t>(0, most - taken + reclaimable);
    if (struct stat status{};
        most >= 0 && most < kNoLimit && taken >= 0 && room < least.bytes && ::stat(at.c_str(), &status) == 0)
      least = {.bytes = room, .limiting = (static_cast<std::uint64_t>(status.st_dev) << 48) ^ status.st_ino};
    if (part == relative.end()) return least;
  }
}

CgroupRoom own_cgroup_room() {
  // "hierarchy:controllers:path"; of version 2 the hierarchy is 0, and there are no controllers.
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string path = line.substr(second + 1);
    std::istringstream controllers(line.substr(first + 1, second - first - 1));
    for (std::string one; std::getline(controllers, one, ',');)
      if (one == "memory") return cgroup_room("/sys/fs/cgroup/memory", path, CgroupVersion::v1);
    // Beside version 1's others there may be one that has no memory.
    if (second == first + 1)
      if (const CgroupRoom room = cgroup_room("/sys/fs/cgroup", path); room.limiting != 0) return room;
  }
  return {};
}

}  // namespace device

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) cores.push_back(cpu);
  return cores;
}

std::vector<int> share_of_cores(const std::vector<int>& cores, int index, int parts) {
  const auto count = static_cast<int>(cores.size());
  if (count < parts) return {};
  return {cores.begin() + count * index / parts, cores.begin() + count * (index + 1) / parts};
}

static const int kCoresAtStart = std::max(1, static_cast<int>(allowed_cores().size()));

int read_cores() {
  // From the program's start: later, threads may be kept on a part of them.
  return kCoresAtStart;
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

void bind_thread(const std::vector<int>& cpus, const std::string& name) {
  if (!name.empty()) pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE)
      throw UsageError(fmt::format("core {}: use 0 to {}", cpu, CPU_SETSIZE - 1));
    CPU_SET(static_cast<std::size_t>(cpu), &set);
  }
  if (const int code = pthread_setaffinity_np(pthread_self(), sizeof set, &set); code != 0)
    throw EnvironmentError(fmt::format("cannot keep thread '{}' on cores {}: {}; this machine offers {}",
                                       name, fmt::join(cpus, ", "), std::strerror(code), read_cores()));
}

ProcessMemory read_process_memory() {
  return {.resident_bytes = bytes_field("/proc/self/status", "VmRSS"),
          .peak_resident_bytes = bytes_field("/proc/self/status", "VmHWM")};
}

std::int64_t read_proportional_bytes() { return bytes_field("/proc/self/smaps_rollup", "Pss"); }

bool reset_peak_memory() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;  // proc(5): resets the peak resident set size
  return file.good();
}

Machine read_machine() {
  Machine machine;
  machine.cpu = field_of("/proc/cpuinfo", "model name");
  machine.instruction_set = widest_instruction_set();
  machine.cores = read_cores();
  machine.memory_bytes = bytes_field("/proc/meminfo", "MemTotal");
  machine.available_bytes = std::min(device::system_available_bytes(), device::own_cgroup_room().bytes);
  machine.huge_pages = huge_pages_allowed();
  return machine;
}

}  // namespace tessera
