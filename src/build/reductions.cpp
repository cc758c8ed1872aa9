// From a microbatch's gradients to the updated parameters.
#include <algorithm>
#include <bit>

#include "src/build/builder.h"

namespace tessera {

std::vector<Builder::BlockPart> Builder::parts_of(int microbatch) const {
  const int ranks = rounds_.shards(mesh_, microbatch);
  const auto some = [&](int first, int count) {
    return count == mesh_.shard ? Contributors{} : Contributors{.first = first, .count = count};
  };
  if (rounds_.blocks == 1)
    return {{.of = some(0, ranks), .begins = microbatch == 0, .ends = microbatch == spec_.microbatches - 1}};
  // The round has microbatches [begin, end) of this replica's.
  const std::int64_t of_block = rounds_.microbatches(mesh_) / rounds_.blocks;
  const std::int64_t begin = std::int64_t{microbatch} * mesh_.shard, end = begin + ranks;
  std::vector<BlockPart> parts;
  for (std::int64_t block = begin / of_block; block * of_block < end; ++block) {
    const std::int64_t first = std::max(begin, block * of_block),
                       last = std::min(end, (block + 1) * of_block);
    parts.push_back({.block = static_cast<int>(block),
                     .of = some(static_cast<int>(first - begin), static_cast<int>(last - first)),
                     .begins = first == block * of_block,
                     .ends = last == (block + 1) * of_block});
  }
  return parts;
}

void Builder::issue_reductions(int position) {
  const Slot& slot = slots_[position];
  if (slot.use.pass != gradient_pass(slot.use.unit)) return;
  for (FlatId flat : layout_.flats_used_by(slot.use.unit)) {
    if (!trains(flat)) continue;
    const std::vector<int>& positions = backward_positions_[flat];
    const auto next = std::upper_bound(positions.begin(), positions.end(), position);
    if (next != positions.end() && slots_[*next].microbatch == slot.microbatch) continue;
    const FlatBuffers& buffers = flat_buffers_[flat];
    if (nothing_to_add(flat)) {
      after_last_reduction(flat);
      release_behind(buffers.reduced, next_id() - 1, position);
      continue;
    }
    if (reduce_when_ == ReduceWhen::last) {
      const bool first = slot.microbatch == 0;
      if (first) begin(buffers.local_sum, next_id());
      accumulate(Lane::compute, flat, slot.microbatch,
                 part(Role::from, buffers.gradient, kWhole, Access::read),
                 part(Role::to, buffers.local_sum, kWhole, first ? Access::write : Access::add));
      if (slot.microbatch < spec_.microbatches - 1) continue;
      std::vector<int> here;
      add_to_block(flat, position, {.begins = true, .ends = true}, buffers.local_sum, here);
      continue;
    }
    std::vector<int> here;
    for (const BlockPart& more : parts_of(slot.microbatch))
      add_to_block(flat, position, more, rests_in(slot.microbatch) ? -1 : buffers.gradient, here);
    for (const int depth : here) {
      const WaitingSum sum = sum_at(flat, depth);
      copy(flat, slot.microbatch, sum.device, sum.host);
      release_behind(sum.device, next_id() - 1, position);
    }
  }
}

// Where this rank's sum of that depth in the tree of its blocks is made: the whole one in the accumulator.
WaitingSum Builder::sum_at(FlatId flat, int depth) const {
  const FlatBuffers& buffers = flat_buffers_[flat];
  if (depth > 0) return buffers.block_sums[depth - 1];
  return {.device = buffers.accumulator, .host = buffers.host_gradient};
}

// A block that is complete is added to the one before it, and so is every pair that this completes: as a
// binary counter counts. A block's depth is the number of sums that wait meanwhile. `here`: the depths of the
// sums that have come from the host, or are to go there, behind the round.
void Builder::add_to_block(FlatId flat, int position, const BlockPart& more, BufferId from,
                           std::vector<int>& here) {
  const int microbatch = slots_[position].microbatch;
  const auto goes_on = [&](int depth) {
    const WaitingSum sum = sum_at(flat, depth);
    if (sum.host < 0 || std::erase(here, depth) > 0) return sum;
    copy(flat, microbatch, sum.host, sum.device);
    return sum;
  };
  const auto block = static_cast<unsigned>(more.block);
  int depth = std::popcount(block);
  WaitingSum sum = more.begins ? sum_at(flat, depth) : goes_on(depth);
  reduce(flat, microbatch, more.of, from, sum.device, !more.begins);
  if (from >= 0) release_behind(from, next_id() - 1, position);
  for (int pairs = more.ends ? std::countr_one(block) : 0; pairs > 0; --pairs) {
    const WaitingSum before = goes_on(--depth);
    accumulate(Lane::reduce, flat, microbatch, part(Role::from, sum.device, kShard, Access::read),
               part(Role::to, before.device, kShard, Access::add));
    release_behind(sum.device, next_id() - 1, position);
    sum = before;
  }
  if (more.ends && more.block == blocks_here() - 1)
    after_last_reduction(flat);
  else if (sum.host >= 0)
    here.push_back(depth);
  release_behind(sum.device, next_id() - 1, position);
}

// A rank that has nothing to reduce gives no `from`, −1.
void Builder::reduce(FlatId flat, int microbatch, const Contributors& of, BufferId from, BufferId to,
                     bool accumulate) {
  Instruction reduction = about(Opcode::reduce_scatter, Lane::reduce, flat);
  reduction.microbatch = microbatch;
  reduction.channel = channel(Lane::reduce);
  reduction.contributors = of;
  if (from >= 0)
    reduction.operands.push_back(part(Role::from, from, kWhole, Access::read));
  else
    reduction.wire = layout_.flat(flat).dtype;
  reduction.operands.push_back(part(Role::to, to, kShard, accumulate ? Access::add : Access::write));
  if (!accumulate && from != to) begin(to, next_id());
  add(std::move(reduction));
}

// On the lane that makes what is added.
void Builder::accumulate(Lane lane, FlatId flat, int microbatch, const Operand& from, const Operand& to) {
  Instruction sum = about(Opcode::accumulate, lane, flat);
  sum.microbatch = microbatch;
  sum.operands = {from, to};
  add(std::move(sum));
}

// Each replica's slice of the sum of all. Blocks are added as a tree over replicas, too: pair by pair, into
// sums that wait as blocks do.
void Builder::reduce_over_replicas(FlatId flat) {
  const FlatBuffers& buffers = flat_buffers_[flat];
  const auto over_replicas = [&](const Contributors& of, BufferId to) {
    Instruction reduction = about(Opcode::reduce_scatter, Lane::reduce, flat);
    reduction.channel = channel(Lane::reduce, Axis::replicate);
    reduction.contributors = of;
    reduction.operands = {part(Role::from, buffers.reduced, kShard, Access::read),
                          part(Role::to, to, kSlice, Access::write)};
    add(std::move(reduction));
  };
  if (buffers.replica_sums.empty()) return over_replicas({}, buffers.reduced);
  const auto add_up = [&](BufferId from, BufferId to, Access access) {
    accumulate(Lane::reduce, flat, -1, part(Role::from, from, kSlice, Access::read),
               part(Role::to, to, kSlice, access));
  };
  for (int pair = 0; 2 * pair < mesh_.replicate; ++pair) {
    const auto block = static_cast<unsigned>(pair);
    int depth = std::popcount(block);
    begin(buffers.replica_sums[depth], next_id());
    over_replicas({.first = 2 * pair, .count = 2}, buffers.replica_sums[depth]);
    for (int pairs = std::countr_one(block); pairs > 0; --pairs, --depth)
      add_up(buffers.replica_sums[depth], buffers.replica_sums[depth - 1], Access::add);
  }
  add_up(buffers.replica_sums[0], buffers.reduced, Access::write);  // which no peer reads any more
}

// Each tensor rank's piece of the sum of all.
void Builder::reduce_over_tensor(FlatId flat) {
  const BufferId reduced = flat_buffers_[flat].reduced;
  Instruction reduction = about(Opcode::reduce_scatter, Lane::reduce, flat);
  reduction.channel = channel(Lane::reduce, Axis::tensor);
  reduction.operands = {part(Role::from, reduced, kSlice, Access::read),
                        part(Role::to, reduced, kPiece, Access::write)};
  add(std::move(reduction));
}

// If several pipeline ranks hold the flat, its gradient is complete only when they have exchanged theirs.
void Builder::after_last_reduction(FlatId flat) {
  if (mesh_.replicate > 1) reduce_over_replicas(flat);
  if (summed_over_tensor(flat)) reduce_over_tensor(flat);
  if (!shared(flat)) return square_and_gather(flat);
  if (summed_over_tensor(flat)) gather_in_place(flat, flat_buffers_[flat].reduced, Axis::tensor);
}

// Where the gradient is complete: a reduction that completed it takes the squares on its way. Of what tensor
// ranks have copies of each takes those of its piece.
void Builder::take_squares(FlatId flat) {
  const Spread own = copied_over_tensor(flat) ? kPiece : kSlice;
  Instruction& last = program_.instructions.back();
  const bool reduces = last.op == Opcode::reduce_scatter && program_.flat_of(last) == flat;
  if (reduces && (own == kSlice || last.operand(Role::to).region.spread == own)) {
    put_squares(last, flat);
    touch(program_.scalars, next_id() - 1);
  } else {
    Instruction squares = about(Opcode::square_sum, Lane::reduce, flat);
    squares.operands = {part(Role::from, flat_buffers_[flat].reduced, own, Access::read)};
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
  if (summed_over_tensor(flat) && !shared(flat)) gather_in_place(flat, reduced, Axis::tensor);
  if (mesh_.replicate > 1 && !state_over_replicas()) gather_in_place(flat, reduced, Axis::replicate);
  if (mesh_.shard > 1 && !state_sharded()) gather_in_place(flat, reduced, Axis::shard);
  take_down(flat);
}

void Builder::gather_in_place(FlatId flat, BufferId buffer, Axis axis) {
  const Spread parts = axis == Axis::tensor ? kPiece : axis == Axis::replicate ? kSlice : kShard;
  const Spread all = axis == Axis::tensor ? kSlice : axis == Axis::replicate ? kShard : kWhole;
  Instruction gather = about(Opcode::all_gather, Lane::gather, flat);
  gather.channel = channel(Lane::gather, axis);
  gather.operands = {part(Role::from, buffer, parts, Access::read),
                     part(Role::to, buffer, all, Access::write)};
  add(std::move(gather));
}

void Builder::issue_end() {
  exchange_shared();
  const int all = slots_.count();
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
