// Says when a run comes near the limit of a memory: of this process's host or, where it computes on a GPU, of
// that GPU.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::cli {

// How much of a memory is in use, and how much there is for it at most.
struct MemoryUse {
  std::string of;  // "memory", "GPU memory"
  std::int64_t used_bytes = 0, limit_bytes = 0;
  double share() const {
    return limit_bytes > 0 ? static_cast<double>(used_bytes) / static_cast<double>(limit_bytes) : 0.0;
  }
};

// What this process has resident, of that and all that the system, within its cgroup, could still give it
// without swapping.
MemoryUse host_memory_use();
// What all processes use of a GPU's memory.
MemoryUse gpu_memory_use(int ordinal);

// "memory 97%" from 95 % on; nothing below.
std::optional<std::string> near_limit(const MemoryUse& use);

class MemoryWatch {
 public:
  // `gpu`: the ordinal of the process's GPU; none on the CPU.
  explicit MemoryWatch(std::optional<int> gpu = {}) : gpu_(gpu) {}

  // Looks at most every two seconds; `now` is a clock in seconds that does not go back. What is near its
  // limit, the GPU first; nothing if none is.
  const std::optional<std::string>& look(double now);

 private:
  std::optional<int> gpu_;
  std::optional<double> looked_;
  std::optional<std::string> told_;
};

}  // namespace tessera::cli
