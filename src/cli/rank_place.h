// Where a rank of a run computes: on the CPU, or on which GPU of its host. Not what it computes there.
#pragma once

#include <string>

#include "src/cli/gpu_memory.h"
#include "tessera/communicator.h"
#include "tessera/trainer.h"

namespace tessera::cli {

// A rank's device, and the world that reaches it there.
struct RankPlace {
  Communicator world;
  TrainerOptions options;
  int gpus = 0;           // of this host, of which its ranks take one each, in turn
  std::string gpu = {};   // the name of this rank's
  GpuMemory memory = {};  // of it, where this is the first rank on it
};

// Of this rank of `world`, where options.engine.device says what to compute on: without GPUs the two as they
// are, with them a world between GPUs and the ordinal of this rank's. Collective with GPUs. EnvironmentError
// where no GPU can be used, UsageError where a host has more ranks than GPUs and NCCL would refuse them;
// else the errors of make_nccl_world().
RankPlace place_of_rank(const Communicator& world, const TrainerOptions& options);

}  // namespace tessera::cli
