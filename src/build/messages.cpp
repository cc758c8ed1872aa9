// What pipeline ranks send each other: outputs forward, their gradients back, and at the end of the step the
// gradients of flats that several of them hold.
#include <algorithm>

#include "src/build/builder.h"

namespace tessera {

// A chunk's input comes from the chunk before, the gradient of its output from the chunk behind. What chunks
// of this rank hand to each other is there already.
void Builder::find_messages() {
  if (!pipelined()) return;
  const std::span<const Chunk> chunks = partition_.chunks();
  const auto expect = [&](Lane lane, Pass pass, int from, UnitId unit) {
    for (int microbatch = 0; microbatch < spec_.microbatches; ++microbatch)
      if (!rests_in(microbatch))
        incoming_.push_back({.lane = lane,
                             .from = partition_.chunk(from).rank,
                             .unit = unit,
                             .microbatch = microbatch,
                             .made = times_.start(from, microbatch, pass) + times_.duration(pass)});
  };
  for (std::size_t behind = 1; behind < chunks.size(); ++behind) {
    const Chunk &first = chunks[behind - 1], &second = chunks[behind];
    if (first.rank == second.rank) continue;
    const UnitId boundary = first.end - 1;
    const int chunk = static_cast<int>(behind);
    if (second.rank == pipeline_rank_) expect(Lane::receive_output, Pass::forward, chunk - 1, boundary);
    if (first.rank == pipeline_rank_ && train() && hands_back(second.first))
      expect(Lane::receive_gradient, Pass::backward, chunk, boundary);
  }
  std::ranges::stable_sort(incoming_, {},
                           [](const Incoming& message) { return std::tuple(message.made, message.lane); });
}

// Where all units before are frozen, nobody wants it.
bool Builder::hands_back(UnitId unit) const {
  if (!has_activations()) return true;
  const UnitGraph& declared = graph(unit);
  return std::ranges::any_of(declared.parts, [&](const PartSpec& part) {
    return part.pass == Pass::backward && declared.writes_some(part, SharedValue::input_gradient);
  });
}

InstructionId Builder::add_message(Instruction message, int peer) {
  message.channel = channel(message.lane, Axis::pipeline);
  message.peer = peer;
  return add(std::move(message));
}

// Where a device starts what communicates in the order of issue, a message that waits for its receiver holds
// up what its sender issues behind it, and a receiver that waits what it sends itself. So both are issued
// when the message is made, in a pipeline of equal passes: whatever waits does so for something earlier. That
// holds for several senders, too: a lane receives in the order of these times, and a rank makes one message
// at a time.
void Builder::issue_receives(int position) {
  for (; received_ < incoming_.size(); ++received_) {
    const Incoming& message = incoming_[received_];
    if (message.made > slots_[position].time) break;
    const UnitBuffers& buffers = unit_buffers_[message.unit];
    const bool output = message.lane == Lane::receive_output;
    const BufferId buffer = (output ? buffers.output : buffers.output_gradient).of(message.microbatch);
    if (buffer < 0) continue;  // a unit without activations of ours to hand on
    begin(buffer, next_id());
    add_message({.op = Opcode::receive,
                 .lane = message.lane,
                 .unit = message.unit,
                 .microbatch = message.microbatch,
                 .operands = {whole(Role::to, buffer, Access::write)},
                 .waits = {}},
                message.from);
  }
}

// A chunk's last forward has made its output, its last backward the gradient of its input.
void Builder::issue_sends(int position) {
  const Slot& slot = slots_[position];
  if (!pipelined() || rests_in(slot.microbatch)) return;
  const int index = partition_.chunk_of(slot.use.unit);
  const Chunk& chunk = partition_.chunk(index);
  const auto send = [&](Lane lane, UnitId unit, BufferId buffer, int to, Pass pass) {
    const int receiver = partition_.chunk(to).rank;
    if (buffer < 0 || receiver == pipeline_rank_) return;
    const InstructionId id = add_message({.op = Opcode::send,
                                          .lane = lane,
                                          .unit = unit,
                                          .microbatch = slot.microbatch,
                                          .operands = {whole(Role::from, buffer, Access::read)},
                                          .waits = {}},
                                         receiver);
    const std::vector<int>& starts = starts_[receiver];
    keep_until_taken(buffer, id, lane, *std::ranges::lower_bound(starts, slot.time + times_.duration(pass)));
  };
  const auto buffers = [&](UnitId unit) -> const UnitBuffers& { return unit_buffers_[unit]; };
  const int chunks = static_cast<int>(partition_.chunks().size());
  if (slot.use.pass == Pass::forward && slot.use.unit == chunk.end - 1 && index + 1 < chunks)
    send(Lane::send_output, chunk.end - 1, buffers(chunk.end - 1).output.of(slot.microbatch), index + 1,
         Pass::forward);
  if (slot.use.pass == Pass::backward && slot.use.unit == chunk.first && index > 0 && hands_back(chunk.first))
    send(Lane::send_gradient, chunk.first - 1, buffers(chunk.first - 1).output_gradient.of(slot.microbatch),
         index - 1, Pass::backward);
}

// Whoever takes the memory of a buffer that is being sent waits until its receiver has it. Were that
// receiver, in the same way, to wait for a message to this rank, neither would ever have it. So the buffer
// keeps its memory while passes run here that start no later than the pass which needs it there, in a
// pipeline of equal passes: every wait for memory is then for something that is over before, at such times,
// and no circle of them exists.
void Builder::keep_until_taken(BufferId sent, InstructionId send, Lane lane, int taken) {
  int& latest = taken_[lane];  // a lane's messages are taken one after the other
  latest = std::max(latest, taken);
  const auto behind = std::ranges::upper_bound(slots_, latest, {}, &Slot::time);
  const int position = static_cast<int>(behind - slots_.begin()) - 1;
  pending_ends_.push_back({sent, send, position, true});
}

// The holders of a flat stand in a row, its home first. Sums run along it to the home, each holder adding its
// own, and the total runs back; behind all other messages, so that no lane waits for one before its turn.
void Builder::exchange_shared() {
  struct Holder {
    FlatId flat;
    int before, behind;  // pipeline ranks; −1 at the row's ends
  };
  std::vector<Holder> places;
  for (FlatId flat = 0; flat < layout_.flats().count(); ++flat) {
    if (!trains(flat) || !shared(flat)) continue;
    const std::vector<int>& row = holders(flat);
    const auto at = std::ranges::find(row, pipeline_rank_);
    places.push_back({flat, at == row.begin() ? -1 : *(at - 1), at + 1 == row.end() ? -1 : *(at + 1)});
  }
  const auto message = [&](Opcode op, Lane lane, FlatId flat, BufferId buffer, int peer) {
    Instruction exchanged = about(op, lane, flat);
    exchanged.operands = {op == Opcode::send ? part(Role::from, buffer, kSlice, Access::read)
                                             : part(Role::to, buffer, kSlice, Access::write)};
    return add_message(std::move(exchanged), peer);
  };
  for (const Holder& place : places) {
    const FlatBuffers& buffers = flat_buffers_[place.flat];
    if (place.behind >= 0) {
      begin(buffers.tied_sum, next_id());
      message(Opcode::receive, Lane::receive_gradient, place.flat, buffers.tied_sum, place.behind);
      accumulate(Lane::compute, place.flat, -1, part(Role::from, buffers.tied_sum, kSlice, Access::read),
                 part(Role::to, buffers.reduced, kSlice, Access::add));
    }
    if (place.before >= 0)
      message(Opcode::send, Lane::send_gradient, place.flat, buffers.reduced, place.before);
  }
  for (const Holder& place : places) {
    const BufferId reduced = flat_buffers_[place.flat].reduced;
    if (place.before >= 0) message(Opcode::receive, Lane::receive_output, place.flat, reduced, place.before);
    if (place.behind >= 0) message(Opcode::send, Lane::send_output, place.flat, reduced, place.behind);
    square_and_gather(place.flat);
  }
}

}  // namespace tessera
