#include "src/cli/memory_watch.h"

#include <fmt/format.h>

#include "tessera/machine.h"

namespace tessera::cli {

MemoryUse host_memory_use() {
  const std::int64_t resident = read_process_memory().resident_bytes;
  return {.of = "memory", .used_bytes = resident, .limit_bytes = resident + read_machine().available_bytes};
}

MemoryUse gpu_memory_use(int ordinal) {
  const CudaMachine machine = read_cuda_machine();
  const auto place = static_cast<std::size_t>(ordinal);
  if (place >= machine.gpus.size()) return {.of = "GPU memory"};
  return {.of = "GPU memory",
          .used_bytes = read_gpu_used_bytes(ordinal),
          .limit_bytes = machine.gpus[place].memory_bytes};
}

std::optional<std::string> near_limit(const MemoryUse& use) {
  constexpr double kNear = 0.95;
  if (use.share() < kNear) return std::nullopt;
  return fmt::format("{} {:.0f}%", use.of, 100 * use.share());
}

const std::optional<std::string>& MemoryWatch::look(double now) {
  constexpr double kEvery = 2.0;  // seconds
  if (looked_ && now - *looked_ < kEvery) return told_;
  looked_ = now;
  told_ = gpu_ ? near_limit(gpu_memory_use(*gpu_)) : std::nullopt;
  if (!told_) told_ = near_limit(host_memory_use());
  return told_;
}

}  // namespace tessera::cli
