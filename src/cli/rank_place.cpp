#include "src/cli/rank_place.h"

#include <fmt/format.h>

#include <cstdlib>

#include "tessera/device.h"
#include "tessera/error.h"

namespace tessera::cli {

RankPlace place_of_rank(const Communicator& world, const TrainerOptions& options) {
  RankPlace place{.world = world, .options = options};
  if (options.engine.device != DeviceType::cuda) return place;
  const CudaMachine machine = read_cuda_machine();
  if (!machine.unusable.empty())
    throw EnvironmentError(fmt::format(
        "rank {}: no GPU can be used: {}; run.device is cuda, with cpu it would train without one",
        world.global_rank(), machine.unusable));
  place.gpus = static_cast<int>(machine.gpus.size());
  const HostPlace on_host = place_on_host(place.world);
  if (on_host.ranks > place.gpus && std::getenv("NCCL_HOSTID") == nullptr)
    throw UsageError(fmt::format(
        "the mesh has {} ranks: this host has {} of them and {} GPUs, and NCCL takes one rank a GPU; "
        "for a test, processes that have an NCCL_HOSTID each can share one",
        world.world(), on_host.ranks, place.gpus));
  if (on_host.rank < place.gpus) place.memory = GpuMemory(on_host.rank);
  if (world.world() > 1) place.world = make_nccl_world(world, {.deadline = options.engine.deadline});
  place.options.engine.device_ordinal = on_host.rank % place.gpus;
  place.gpu = machine.gpus[static_cast<std::size_t>(on_host.rank % place.gpus)].name;
  return place;
}

}  // namespace tessera::cli
