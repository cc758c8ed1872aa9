// Where a rank of a run computes: on the CPU, or on which GPU of its host, and how much of that GPU's memory
// the run takes. Not what it computes there.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/communicator.h"
#include "tessera/machine.h"
#include "tessera/trainer.h"

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

// The GPU that a rank takes, among those that its process sees.
struct RankGpu {
  int ordinal = 0;
  bool first = true;  // of the ranks on it
};

// The ranks of a host take the GPUs that they see in turn, whether each sees all of them or, as launchers may
// have it, its own alone. Collective; `machine` is what this rank's process sees, one GPU at least.
// UsageError where two ranks would have the same GPU, which NCCL refuses, unless `may_share`.
RankGpu gpu_of_rank(Communicator& world, const CudaMachine& machine, bool may_share);

// A rank's device, and the world that reaches it there.
struct RankPlace {
  Communicator world;
  TrainerOptions options;
  int gpus = 0;           // that this rank's process sees
  std::string gpu = {};   // the name of this rank's
  GpuMemory memory = {};  // of it, where this is the first rank on it
};

// Of this rank of `world`, where options.engine.device says what to compute on: without GPUs the two as they
// are, with them a world between GPUs and the ordinal of this rank's. Collective with GPUs. EnvironmentError
// where no GPU can be used; else the errors of gpu_of_rank() and make_nccl_world().
RankPlace place_of_rank(const Communicator& world, const TrainerOptions& options);

}  // namespace tessera::cli
