// Where a rank computes: on the CPU, or on which GPU of its host. Also how much of that GPU's memory the run
// takes. Knows nothing of what is computed.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/communicator.h"
#include "tessera/machine.h"
#include "tessera/trainer.h"

namespace tessera::cli {

// Growth of a GPU's used memory, in bytes. The driver loads kernels at their first launch, and libraries take
// memory of their own.
struct GpuGrowth {
  std::int64_t set_up = 0;      // arenas, connections between GPUs, and libraries
  std::int64_t libraries = 0;   // of set_up what was taken before the arenas: Engine::library_bytes()
  std::int64_t first_step = 0;  // in the first step, beyond set_up
  std::int64_t later = 0;       // most beyond both, at the times that were measured

  std::int64_t total() const { return set_up + first_step + later; }
  GpuGrowth& operator+=(const GpuGrowth& other) {
    set_up += other.set_up;
    libraries += other.libraries;
    first_step += other.first_step;
    later += other.later;
    return *this;
  }
};

class GpuMemory {
 public:
  GpuMemory() = default;  // of no GPU: all growth is 0
  // Measures growth from what is in use now.
  explicit GpuMemory(int ordinal);

  void after_set_up(std::int64_t libraries);
  void after_step(std::int64_t steps);  // `steps` done in this run. Call after the first, and after any
                                        // others
  const GpuGrowth& growth() const { return growth_; }

 private:
  std::int64_t grown() const;

  int ordinal_ = -1;
  std::int64_t before_ = 0;
  GpuGrowth growth_;
};

// The GPU that a rank uses, among those that its process sees.
struct RankGpu {
  int ordinal = 0;
  bool first = true;  // whether it is the first rank on that GPU
};

// Assigns GPUs: the ranks of a host take in turn the GPUs that they see. Each may see all of them or, as some
// launchers do it, only its own. Collective. `machine` is what this rank's process sees, at least one GPU.
// Throws UsageError if two ranks would have the same GPU, which NCCL refuses, unless `may_share`.
RankGpu gpu_of_rank(Communicator& world, const CudaMachine& machine, bool may_share);

// A rank's device, and the world that connects it.
struct RankPlace {
  Communicator world;
  TrainerOptions options;
  int gpus = 0;           // number of GPUs that this rank's process sees
  std::string gpu = {};   // name of this rank's GPU
  GpuMemory memory = {};  // memory of this GPU, if this is the first rank on it
};

// The place of this rank of `world`. options.engine.device says what to compute on. On the CPU the result has
// `world` and `options` unchanged. On GPUs it has a world between GPUs, and the ordinal of this rank's GPU in
// the options; the call is then collective. Throws EnvironmentError if no GPU can be used, and the errors of
// gpu_of_rank() and make_nccl_world().
RankPlace place_of_rank(const Communicator& world, const TrainerOptions& options);

// Has `options` planned for the GPU that place_of_rank() will give the rank which is `rank_on_host` on its
// host (TrainerOptions::asks_gpu), if options.engine.device is CUDA and this process sees a GPU. Returns why
// it sees none, if that leaves a workspace of attention by cuDNN a bound; else nothing.
std::string ask_gpu(TrainerOptions& options, int rank_on_host = 0);

}  // namespace tessera::cli
