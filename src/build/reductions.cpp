// From a microbatch's gradients to the updated parameters.
#include "src/build/builder.h"

namespace tessera {

void Builder::issue_reductions(int position) {
  const Slot& slot = slots_[static_cast<std::size_t>(position)];
  if (slot.use.pass != Pass::backward) return;
  const bool last_microbatch = slot.microbatch == spec_.microbatches - 1;
  for (FlatId flat : layout_.flats_used_by(slot.use.unit)) {
    if (!trains(flat)) continue;
    const std::vector<int>& positions = backward_positions_[static_cast<std::size_t>(flat)];
    const auto next = std::upper_bound(positions.begin(), positions.end(), position);
    if (next != positions.end() && slots_[static_cast<std::size_t>(*next)].microbatch == slot.microbatch)
      continue;
    const FlatBuffers& buffers = flat_buffers_[flat];
    if (nothing_to_add(flat)) {
      after_last_reduction(flat);
      release_behind(buffers.reduced, next_id() - 1, position);
      continue;
    }
    BufferId from = rests_in(slot.microbatch) ? -1 : buffers.gradient;
    bool accumulate = slot.microbatch > 0;
    if (reduce_when_ == ReduceWhen::last) {
      Instruction sum = about(Opcode::accumulate, Lane::compute, flat);
      sum.microbatch = slot.microbatch;
      sum.operands = {part(Role::from, buffers.gradient, kWhole, Access::read),
                      part(Role::to, buffers.local_sum, kWhole, accumulate ? Access::add : Access::write)};
      if (!accumulate) begin(buffers.local_sum, next_id());
      add(std::move(sum));
      if (!last_microbatch) continue;
      from = buffers.local_sum;
      accumulate = false;
    }
    if (accumulate) resume_sum(flat, slot.microbatch);
    reduce(flat, slot.microbatch, from, accumulate);
    if (from >= 0) release_behind(from, next_id() - 1, position);
    if (last_microbatch) {
      after_last_reduction(flat);
    } else {
      take_down(flat, slot.microbatch);
    }
    release_behind(buffers.reduced, next_id() - 1, position);
  }
}

// In the last round only the first ranks may contribute. One that rests there has nothing to reduce, `from`
// −1.
void Builder::reduce(FlatId flat, int microbatch, BufferId from, bool accumulate) {
  const BufferId accumulator = flat_buffers_[flat].accumulator;
  Instruction reduction = about(Opcode::reduce_scatter, Lane::reduce, flat);
  reduction.microbatch = microbatch;
  reduction.channel = channel(Lane::reduce);
  if (microbatch == spec_.microbatches - 1) reduction.contributors = spec_.last_round_ranks;
  if (from >= 0)
    reduction.operands.push_back(part(Role::from, from, kWhole, Access::read));
  else
    reduction.wire = layout_.flat(flat).dtype;
  reduction.operands.push_back(part(Role::to, accumulator, kShard, accumulate ? Access::add : Access::write));
  if (!accumulate && from != accumulator) begin(accumulator, next_id());
  add(std::move(reduction));
}

// Of a flat that several pipeline ranks hold, the gradient is complete only when they have exchanged theirs.
void Builder::after_last_reduction(FlatId flat) {
  if (mesh_.replicate > 1) {
    Instruction reduction = about(Opcode::reduce_scatter, Lane::reduce, flat);
    reduction.channel = channel(Lane::reduce, Axis::replicate);
    const BufferId reduced = flat_buffers_[flat].reduced;
    reduction.operands = {part(Role::from, reduced, kShard, Access::read),
                          part(Role::to, reduced, kSlice, Access::write)};
    add(std::move(reduction));
  }
  if (!shared(flat)) square_and_gather(flat);
}

// Where the gradient is complete: a reduction that completed it takes the squares on its way.
void Builder::take_squares(FlatId flat) {
  Instruction& last = program_.instructions.back();
  if (last.op == Opcode::reduce_scatter && program_.flat_of(last) == flat) {
    put_squares(last, flat);
    touch(program_.scalars, next_id() - 1);
  } else {
    Instruction squares = about(Opcode::square_sum, Lane::reduce, flat);
    squares.operands = {part(Role::from, flat_buffers_[flat].reduced, kSlice, Access::read)};
    put_squares(squares, flat);
    add(std::move(squares));
  }
}

// To this rank's sum and, where asked for, to that of each parameter.
void Builder::put_squares(Instruction& into, FlatId flat) const {
  const auto add_to = [&](ParameterId parameter) {
    into.operands.push_back({.role = Role::squares,
                             .buffer = program_.scalars,
                             .region = Region::sum_of(parameter),
                             .access = Access::add});
  };
  add_to(kAllParameters);
  if (spec_.parameter_norms)
    for (const ParameterId parameter : layout_.flat(flat).parameters) add_to(parameter);
}

// Every replica and, where states are replicated, every rank updates the same, so it needs the others'
// slices.
void Builder::square_and_gather(FlatId flat) {
  const BufferId reduced = flat_buffers_[flat].reduced;
  if (squares(flat)) take_squares(flat);
  if (mesh_.replicate > 1 && !state_over_replicas()) gather_in_place(flat, reduced, Axis::replicate);
  if (mesh_.shard > 1 && !state_sharded()) gather_in_place(flat, reduced, Axis::shard);
  take_down(flat, -1);
}

void Builder::gather_in_place(FlatId flat, BufferId buffer, Axis axis) {
  const bool of_slices = axis == Axis::replicate;
  Instruction gather = about(Opcode::all_gather, Lane::gather, flat);
  gather.channel = channel(Lane::gather, axis);
  gather.operands = {part(Role::from, buffer, of_slices ? kSlice : kShard, Access::read),
                     part(Role::to, buffer, of_slices ? kShard : kWhole, Access::write)};
  add(std::move(gather));
}

void Builder::issue_end() {
  exchange_shared();
  const int all = static_cast<int>(slots_.size());
  if (updates_early()) {
    issue_updates(all);
    while (handed_on_ < updated_) hand_on_next();
    return decide();
  }
  prepare_updates();  // whatever the decision will be
  decide();
  issue_updates(all);
}

}  // namespace tessera
