// Where a rank of a run computes: on the CPU, or on which GPU of its host. Not what it computes there.
#pragma once

#include <string>

#include "src/cli/gpu_memory.h"
#include "tessera/communicator.h"
#include "tessera/machine.h"
#include "tessera/trainer.h"

namespace tessera::cli {

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
