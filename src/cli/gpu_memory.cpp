#include "src/cli/gpu_memory.h"

#include <algorithm>

#include "tessera/machine.h"

namespace tessera::cli {

GpuMemory::GpuMemory(int ordinal) : ordinal_(ordinal), before_(read_gpu_used_bytes(ordinal)) {}

std::int64_t GpuMemory::grown() const {
  return ordinal_ < 0 ? 0 : read_gpu_used_bytes(ordinal_) - before_ - growth_.set_up;
}

void GpuMemory::after_set_up() { growth_.set_up = grown(); }

void GpuMemory::after_step(std::int64_t steps) {
  if (steps == 1)
    growth_.first_step = grown();
  else
    growth_.later = std::max(growth_.later, grown() - growth_.first_step);
}

}  // namespace tessera::cli
