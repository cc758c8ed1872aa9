// How much the memory in use of a rank's GPU grows over a run, by the driver's count: what the plan's arena
// is held against.
#pragma once

#include <cstdint>

namespace tessera::cli {

// Bytes. The driver loads kernels when they are launched first, and libraries take memory of their own.
struct GpuGrowth {
  std::int64_t set_up = 0;      // arenas, and what connects GPUs
  std::int64_t first_step = 0;  // beyond it
  std::int64_t later = 0;       // beyond both, at most, as far as was looked

  std::int64_t total() const { return set_up + first_step + later; }
  GpuGrowth& operator+=(const GpuGrowth& other) {
    set_up += other.set_up;
    first_step += other.first_step;
    later += other.later;
    return *this;
  }
};

class GpuMemory {
 public:
  GpuMemory() = default;  // of no GPU: nothing grows
  // From what is in use now.
  explicit GpuMemory(int ordinal);

  void after_set_up();
  void after_step(std::int64_t steps);  // of this run; the first is looked at, of others any
  const GpuGrowth& growth() const { return growth_; }

 private:
  std::int64_t grown() const;

  int ordinal_ = -1;
  std::int64_t before_ = 0;
  GpuGrowth growth_;
};

}  // namespace tessera::cli
