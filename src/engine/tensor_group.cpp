// What a trainer that splits layers itself exchanges along the tensor axis: collectives of a communicator of
// their own, on the compute lane, at the place of the open use.
//
// They bring no deadlock. Ranks along the tensor axis run one program, and its collectives and messages
// join ranks of one place there, or equal instructions of all places. So the waits of all of them are those
// of one of them, seen several times, and these are proved to have no cycle. A use that waits for the same
// use of the other ranks adds none.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/reduce.h"
#include "src/comm/arguments.h"
#include "src/comm/backend.h"
#include "src/engine/engine_impl.h"
#include "src/layout/enumerators.h"

namespace tessera {

// The trainer's own memory lies outside the arena, and NCCL does not take such memory from a communicator
// that has registered some.
void Executor::open_tensor_group() {
  constexpr std::int64_t kUnknownNumel = std::int64_t{1} << 40;
  if (options_.mesh.tensor == 1) return;
  Communicator& group =
      channels_.emplace(kWithinUses, world_.subgroup(members_of(kWithinUses), "lease")).first->second;
  group.bind(lane(Lane::compute), {.numel = kUnknownNumel});
  group.backend()->keep_unregistered();
}

// together(communicator, label), or alone(): one rank has no communicator, since one of the host would not
// reach its GPU.
template <class Together, class Alone>
void Executor::within(InstructionId use, const Together& together, const Alone& alone) {
  const auto group = channels_.find(kWithinUses);
  if (group == channels_.end()) return alone();
  const Waits waits(*this);
  together(group->second, label(instruction_at(use)));
}

void Executor::all_gather_within(InstructionId use, const void* part, void* whole, std::int64_t part_bytes) {
  within(
      use, [&](Communicator& group, CallLabel label) { group.all_gather(part, whole, part_bytes, label); },
      [&] {
        comm::check_all_gather(part, whole, part_bytes, 0, 1);
        if (part != whole) device_.copy(lane(Lane::compute), whole, part, part_bytes);
      });
}

void Executor::reduce_scatter_within(InstructionId use, const ReduceScatter& call) {
  within(
      use, [&](Communicator& group, CallLabel label) { group.reduce_scatter(call, label); },
      [&] {
        comm::check_reduce_scatter(call, 0, 1);
        if (call.shard != call.full)
          kernels::accumulate(compute(Lane::compute), call.shard_numel, call.wire, call.full, 0.0f,
                              call.shard);
      });
}

void Executor::all_reduce_within(InstructionId use, float* values, std::int64_t numel) {
  within(
      use, [&](Communicator& group, CallLabel label) { group.all_reduce(values, numel, label); },
      [&] { comm::check_range("all_reduce", "elements", values, numel, sizeof *values); });
}

TensorGroup::TensorGroup(std::shared_ptr<Engine*> engine, std::int64_t step, InstructionId use)
    : engine_(std::move(engine)), step_(step), use_(use) {}

Engine& TensorGroup::engine() const {
  if (*engine_ == nullptr)
    throw UsageError("the tensor group's engine was destroyed; a group is for the lease that gave it");
  return **engine_;
}

int TensorGroup::ranks() const { return engine().options().mesh.tensor; }

int TensorGroup::rank() const { return engine().impl_->coordinates[Axis::tensor]; }

// Makes a collective where the lease is open.
template <class Call>
void TensorGroup::make(const char* name, const Call& call) const {
  Engine::Impl& impl = *engine().impl_;
  impl.guarded(name, [&] {
    const bool open =
        impl.steps_begun == step_ && std::ranges::find(impl.open_uses, use_) != impl.open_uses.end();
    if (!open)
      throw UsageError(fmt::format(
          "{}: the lease that gave this tensor group has ended; make the call between use() and end()",
          name));
    call(*impl.executor);
  });
}

void TensorGroup::all_gather(const void* part, void* whole, std::int64_t part_bytes) {
  make("all_gather", [&](Executor& executor) { executor.all_gather_within(use_, part, whole, part_bytes); });
}

void TensorGroup::reduce_scatter(const void* whole, DType type, float* part, std::int64_t part_numel) {
  make("reduce_scatter", [&](Executor& executor) {
    check_enumerator("reduce_scatter: type", type, DType::fp16);
    executor.reduce_scatter_within(use_,
                                   {.full = whole, .wire = type, .shard = part, .shard_numel = part_numel});
  });
}

void TensorGroup::all_reduce(float* values, std::int64_t numel) {
  make("all_reduce", [&](Executor& executor) { executor.all_reduce_within(use_, values, numel); });
}

}  // namespace tessera
