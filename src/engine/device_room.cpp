#include "src/engine/device_room.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/device/size_text.h"
#include "tessera/error.h"
#include "tessera/id_vector.h"
#include "tessera/machine.h"

namespace tessera {
namespace {

struct Wish {
  DeviceRoom room;
  std::int64_t budget_bytes = 0, external_bytes = 0;
};

// What all messages begin with.
std::string needs_text(int rank, const DeviceRoom& room) {
  return fmt::format(
      "rank {}: the plan needs {} bytes ({}) of its GPU's memory, and communicators and libraries have taken "
      "{} ({}) before it",
      rank, room.arena_bytes, device::size_text(room.arena_bytes), room.library_bytes,
      device::size_text(room.library_bytes));
}

void check_budget(int rank, const Wish& wish, const BudgetNames& names) {
  if (wish.budget_bytes == 0) return;
  const std::int64_t needed = wish.room.arena_bytes + wish.room.library_bytes + wish.external_bytes;
  if (needed <= wish.budget_bytes) return;
  const std::string external =
      wish.external_bytes > 0 ? fmt::format(", and {} is {}", names.external, wish.external_bytes) : "";
  throw UsageError(
      fmt::format("{}{}: together {} bytes, but {} is {}: {} bytes are missing; raise it to {} or more, or "
                  "have a plan of at most {} bytes",
                  needs_text(rank, wish.room), external, needed, names.device, wish.budget_bytes,
                  needed - wish.budget_bytes, needed,
                  std::max<std::int64_t>(0, wish.room.arena_bytes - (needed - wish.budget_bytes))));
}

void check_free(int rank, const DeviceRoom& room) {
  if (room.arena_bytes <= room.free_bytes) return;
  throw EnvironmentError(
      fmt::format("{}: {} bytes ({}) are free, {} are missing; end what else uses the GPU, shard more, or "
                  "offload states or activations",
                  needs_text(rank, room), room.free_bytes, device::size_text(room.free_bytes),
                  room.arena_bytes - room.free_bytes));
}

}  // namespace

DeviceRoom device_room(int ordinal, std::int64_t arena_bytes, std::int64_t used_before) {
  const std::int64_t used = read_gpu_used_bytes(ordinal);
  const CudaMachine machine = read_cuda_machine();
  if (static_cast<std::size_t>(ordinal) >= machine.gpus.size())
    throw EnvironmentError(fmt::format("GPU {}: no GPU can be used: {}", ordinal, machine.unusable));
  return {.arena_bytes = arena_bytes,
          .library_bytes = std::max<std::int64_t>(0, used - used_before),
          .free_bytes = machine.gpus[static_cast<std::size_t>(ordinal)].memory_bytes - used};
}

void check_device_room(Communicator& ranks, const MemoryBudget& budget, const DeviceRoom& room) {
  const Wish own{.room = room, .budget_bytes = budget.device_bytes, .external_bytes = budget.external_bytes};
  IdVector<Wish> all(ranks.world());
  ranks.all_gather(&own, all.data(), sizeof own, {"set-up", "room on the GPUs"});
  for (int rank = 0; rank < ranks.world(); ++rank) {
    check_budget(rank, all[rank], budget.names);
    check_free(rank, all[rank].room);
  }
}

}  // namespace tessera
