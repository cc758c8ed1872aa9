// A GPU's arena as NCCL takes, registers and gives back its memory.
#include <fmt/format.h>

#include <array>

#include "src/comm/nccl/backend.h"
#include "src/device/cuda_check.h"

namespace tessera::comm {

ArenaSource NcclWorld::arena_source(const std::shared_ptr<NcclWorld>& world) {
  return {.take =
              [world](std::int64_t bytes) {
                void* memory = nullptr;
                const ncclResult_t result = nccl().ncclMemAlloc(&memory, static_cast<std::size_t>(bytes));
                world->arena_note_.clear();
                if (result == ncclSuccess) return memory;
                device::ignore_cuda(cudaGetLastError());  // not to be taken for a later call's
                world->arena_note_ =
                    fmt::format("ncclMemAlloc of {} bytes failed: {}; cudaMalloc took its place", bytes,
                                nccl().ncclGetErrorString(result));
                return static_cast<void*>(nullptr);
              },
          .give_back = [](void* memory) { nccl().ncclMemFree(memory); }};
}

void NcclChannel::register_memory(void* memory, std::int64_t bytes) {
  if (unregistered_) return;
  const std::lock_guard lock(mutex_);
  check_alive();
  for (const auto& [part, part_bytes] : {std::pair{memory, bytes}, {staging_, options_.staging_bytes}}) {
    void* handle = nullptr;
    check_nccl(nccl().ncclCommRegister(communicator_, part, static_cast<std::size_t>(part_bytes), &handle),
               "ncclCommRegister", communicator_);
    if (handle == nullptr)
      throw EnvironmentError(
          "NCCL registers nothing here: NCCL_LOCAL_REGISTER is 0, or its GPUs copy by "
          "NCCL_P2P_USE_CUDA_MEMCPY");
    registered_.emplace(memory, handle);
  }
}

void NcclChannel::end_registrations() noexcept {
  while (!registered_.empty()) release_memory(registered_.begin()->first);
}

// Of a communicator that was aborted, NCCL gives all back itself.
void NcclChannel::release_memory(const void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  const auto [first, last] = registered_.equal_range(memory);
  for (auto one = first; one != last; ++one)
    if (communicator_ != nullptr) nccl().ncclCommDeregister(communicator_, one->second);
  registered_.erase(first, last);
}

void NcclWorld::register_memory(void* memory, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (channels_.empty()) throw EnvironmentError("no communicator is bound to a GPU");
  for (NcclChannel* channel : channels_) channel->register_memory(memory, bytes);
}

void NcclWorld::release_memory(const void* memory) noexcept {
  {
    const std::lock_guard lock(mutex_);
    for (NcclChannel* channel : channels_) channel->release_memory(memory);
    if (!aborted_) return;
    end_taken();
  }
  wait_for_ends(options_.deadline);
}

// NCCL takes registered memory from all members of a communicator, or from none.
ArenaRegistration NcclBackend::register_arena(Arena& arena) {
  using Text = std::array<char, 200>;
  struct Outcome {
    Text refusal{}, note{};
  };
  const auto keep = [](std::string_view text, Text& place) { text.copy(place.data(), place.size() - 1); };
  Outcome own;
  keep(world_->arena_note(), own.note);
  try {
    if (arena.bytes() == 0) throw EnvironmentError("the arena is empty");
    world_->register_memory(arena.base(), arena.bytes());
  } catch (const EnvironmentError& error) {
    keep(error.what(), own.refusal);
  }
  IdVector<Outcome> all(world());
  host_->all_gather(&own, all.data(), sizeof own, {.unit = "set-up", .operation = "register_arena"});
  const auto first = [&](Text Outcome::*which) {
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      if (const Text& text = all[rank].*which; text[0] != 0)
        return fmt::format("rank {}: {}", rank, text.data());
    return std::string();
  };
  const std::string refusal = first(&Outcome::refusal), note = first(&Outcome::note);
  if (!refusal.empty()) {
    world_->release_memory(arena.base());
    return {.reason = refusal, .note = note};
  }
  // Goes before the memory does.
  arena.attach(std::shared_ptr<void>(
      nullptr, [world = world_, memory = arena.base()](void*) { world->release_memory(memory); }));
  return {.direct = true, .note = note};
}

}  // namespace tessera::comm
