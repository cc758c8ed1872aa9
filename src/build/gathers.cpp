// From when to when flats are gathered, and the gathers that this takes.
#include "src/build/builder.h"

namespace tessera {

// Whether a flat gathered for the use at `from` stays for its next use at `to`; before that one, `in_flight`
// microbatches are between a forward and a backward that use it.
bool Builder::stays(FlatId flat, int from, int to, int in_flight) const {
  if (to == from + 1) return true;
  const Slot& a = slots_[from];
  const Slot& b = slots_[to];
  if (a.use.edge == UseEdge::open) return true;  // the opened use is still running
  if (spec_.strategy.pipeline.gather_once && a.use.pass == b.use.pass) return true;
  if (!resident(layout_.flat(flat).unit)) return false;
  return a.microbatch == b.microbatch || (pipelined() && train() && in_flight > 0);
}

void Builder::find_residences() {
  if (!parameters_come_and_go()) return;
  IdVector<int> current(layout_.flats().size(), -1);   // index into residences_
  IdVector<int> open(layout_.flats().size(), 0);       // uses opened and not yet closed
  IdVector<int> in_flight(layout_.flats().size(), 0);  // forwards less backwards
  for (int position = 0; position < slots_.count(); ++position) {
    const Use& use = slots_[position].use;
    // Peers need this rank's part for a use that it has not; what comes from the host is for its own alone.
    if (!parameters_sharded() && rests_in(slots_[position].microbatch)) continue;
    for (FlatId flat : read_by(use)) {
      int& at = current[flat];
      int& nested = open[flat];
      const int previous = at < 0 ? -1 : residences_[at].last;
      if (at >= 0 && (nested > 0 || stays(flat, previous, position, in_flight[flat]))) {
        residences_[at].last = position;
      } else {
        at = residences_.count();
        residences_.push_back({.flat = flat, .first = position, .last = position, .earliest = previous + 1});
      }
      nested += use.edge == UseEdge::open ? 1 : use.edge == UseEdge::close ? -1 : 0;
    }
    for (FlatId flat : layout_.flats_used_by(use.unit))
      in_flight[flat] += use.pass == Pass::forward ? 1 : use.pass == Pass::backward ? -1 : 0;
  }
}

void Builder::issue_gathers(int position) {
  while (gathered_ < residences_.size() && residences_[gathered_].gather >= 0) ++gathered_;
  for (std::size_t next = gathered_; next < residences_.size(); ++next) {
    Residence& residence = residences_[next];
    if (residence.first - position > spec_.strategy.prefetch) break;
    if (residence.gather >= 0 || residence.earliest > position) continue;
    const FlatBuffers& buffers = flat_buffers_[residence.flat];
    const int microbatch = slots_[residence.first].microbatch;
    const InstructionId first = next_id();
    if (parameters_sharded()) {
      Instruction gather = about(Opcode::all_gather, Lane::gather, residence.flat);
      gather.microbatch = microbatch;
      gather.channel = channel(Lane::gather);
      gather.operands = {part(Role::from, shard_to_gather(residence.flat, microbatch), kShard, Access::read),
                         part(Role::to, buffers.gathered, kWhole, Access::write)};
      begin(buffers.gathered, next_id());
      residence.gather = add(std::move(gather));
    } else {  // the one shard is the whole
      const BufferId whole = part_on_host(residence.flat, microbatch);
      residence.gather = copy(residence.flat, microbatch, whole, buffers.gathered);
    }
    // What it was brought through stays while the uses ahead of its own run, which need not wait for it then.
    for (const BufferId through : {buffers.on_host, buffers.on_device})
      if (residence.first > position && brought_since(through, first))
        pending_ends_.push_back({through, buffer(through).lifetimes.back().last, residence.first - 1});
  }
}

bool Builder::brought_since(BufferId id, InstructionId first) {
  return !buffer(id).persistent && !buffer(id).lifetimes.empty() &&
         buffer(id).lifetimes.back().first >= first;
}

// The buffer with this rank's shard: of slices that replicas keep, it is made first.
BufferId Builder::shard_to_gather(FlatId flat, int microbatch) {
  const FlatBuffers& buffers = flat_buffers_[flat];
  if (buffers.secondary < 0) return part_on_device(flat, microbatch);
  if (!has_secondary_[flat]) {
    has_secondary_[flat] = true;
    const BufferId slice = part_on_device(flat, microbatch);
    Instruction gather = about(Opcode::all_gather, Lane::gather, flat);
    gather.microbatch = microbatch;
    gather.channel = channel(Lane::gather, Axis::replicate);
    gather.operands = {part(Role::from, slice, kSlice, Access::read),
                       part(Role::to, buffers.secondary, kShard, Access::write)};
    begin(buffers.secondary, next_id());
    add(std::move(gather));
  }
  return buffers.secondary;
}

}  // namespace tessera
