#include "src/cli/rank_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <vector>

#include "tessera/error.h"
#include "tessera/machine.h"

namespace tessera::cli {

GpuMemory::GpuMemory(int ordinal) : ordinal_(ordinal), before_(read_gpu_used_bytes(ordinal)) {}

std::int64_t GpuMemory::grown() const {
  return ordinal_ < 0 ? 0 : read_gpu_used_bytes(ordinal_) - before_ - growth_.set_up;
}

void GpuMemory::after_set_up(std::int64_t libraries) {
  growth_.set_up = grown();
  growth_.libraries = ordinal_ < 0 ? 0 : libraries;
}

void GpuMemory::after_step(std::int64_t steps) {
  if (steps == 1)
    growth_.first_step = grown();
  else
    growth_.later = std::max(growth_.later, grown() - growth_.first_step);
}

namespace {

int ordinal_of(int rank_on_host, const CudaMachine& machine) {
  return rank_on_host % static_cast<int>(machine.gpus.size());
}

}  // namespace

RankGpu gpu_of_rank(Communicator& world, const CudaMachine& machine, bool may_share) {
  using BusId = std::array<char, 32>;
  const HostPlace place = place_on_host(world);
  RankGpu taken{.ordinal = ordinal_of(place.rank, machine)};
  BusId own{};
  machine.gpus[static_cast<std::size_t>(taken.ordinal)].bus_id.copy(own.data(), own.size());
  IdVector<BusId> all(world.world());
  world.all_gather(&own, all.data(), sizeof own, {"set-up", "finding GPUs"});
  std::map<BusId, int> first_on;  // the same on all ranks of the host
  for (const int rank : place.members) {
    const BusId& bus_id = all[rank];
    const auto [first, is_first] = first_on.try_emplace(bus_id, rank);
    if (rank == world.rank()) taken.first = is_first;
    if (!is_first && !may_share)
      throw UsageError(fmt::format(
          "the mesh has {} ranks: this host has {} of them, and ranks {} and {} would share the GPU at {}, "
          "but NCCL takes one rank a GPU ({} of them are seen here); start fewer ranks a host, or look at "
          "CUDA_VISIBLE_DEVICES; for a test, processes that have an NCCL_HOSTID each can share one",
          world.world(), place.ranks, first->second, rank, bus_id.data(), machine.gpus.size()));
  }
  return taken;
}

RankPlace place_of_rank(const Communicator& world, const TrainerOptions& options) {
  RankPlace place{.world = world, .options = options};
  if (options.engine.device != DeviceType::cuda) return place;
  const CudaMachine machine = read_cuda_machine();
  if (!machine.unusable.empty())
    throw EnvironmentError(fmt::format(
        "rank {}: no GPU can be used: {}; run.device is cuda, with cpu it would train without one",
        world.global_rank(), machine.unusable));
  const RankGpu taken = gpu_of_rank(place.world, machine, std::getenv("NCCL_HOSTID") != nullptr);
  place.gpus = static_cast<int>(machine.gpus.size());
  if (taken.first) place.memory = GpuMemory(taken.ordinal);
  if (world.world() > 1) place.world = make_nccl_world(world, {.deadline = options.engine.waits.deadline});
  place.options.engine.device_ordinal = taken.ordinal;
  place.gpu = machine.gpus[static_cast<std::size_t>(taken.ordinal)].name;
  return place;
}

std::string ask_gpu(TrainerOptions& options, int rank_on_host) {
  if (options.engine.device != DeviceType::cuda) return "";
  const CudaMachine machine = read_cuda_machine();
  if (!machine.unusable.empty()) return machine.cudnn.empty() ? "" : machine.unusable;
  options.engine.device_ordinal = ordinal_of(rank_on_host, machine);
  options.asks_gpu = true;
  return "";
}

}  // namespace tessera::cli
