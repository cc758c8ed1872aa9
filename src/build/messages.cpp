// What pipeline ranks send each other: outputs forward, their gradients back, and at the end of the step the
// gradients of flats that several of them hold.
#include "src/build/builder.h"

namespace tessera {

// A chunk's input comes from the rank before, the gradient of its output from the rank behind, each in the
// order in which that rank computes them.
void Builder::find_messages() {
  if (!pipelined()) return;
  const int chunks = static_cast<int>(partition_.chunks().size());
  // The first use of each pass, a recompute perhaps: by chunk, microbatch and whether it is a forward.
  std::map<std::tuple<int, int, bool>, int> first_use;
  for (int position = 0; position < slots_.count(); ++position) {
    const Slot& slot = slots_[position];
    if (slot.use.pass == Pass::weight_gradient) continue;
    first_use.try_emplace(
        {partition_.chunk_of(slot.use.unit), slot.microbatch, slot.use.pass == Pass::forward}, position);
  }
  const auto fill = [&](Inbox& inbox, Lane lane, Pass pass, int step) {
    inbox.lane = lane;
    inbox.from = (pipeline_rank_ - step + mesh_.pipeline) % mesh_.pipeline;
    for (const ChunkPass& sent : pipeline_order(spec_.strategy.pipeline.schedule, shape(), inbox.from)) {
      const int chunk = sent.chunk + step;
      if (sent.pass != pass || chunk < 0 || chunk >= chunks || rests_in(sent.microbatch)) continue;
      const int made = times_.start(sent.chunk, sent.microbatch, pass) + times_.duration(pass);
      const auto from_then_on = std::ranges::lower_bound(slots_, made, {}, &Slot::time);
      inbox.messages.push_back({.chunk = chunk,
                                .microbatch = sent.microbatch,
                                .due = static_cast<int>(from_then_on - slots_.begin())});
    }
    int due = slots_.count();
    for (auto message = inbox.messages.rbegin(); message != inbox.messages.rend(); ++message) {
      const int needs = first_use.at({message->chunk, message->microbatch, pass == Pass::forward});
      message->due = due = std::min({due, message->due, needs});
    }
  };
  fill(inboxes_[0], Lane::receive_output, Pass::forward, 1);
  if (train()) fill(inboxes_[1], Lane::receive_gradient, Pass::backward, -1);
}

InstructionId Builder::add_message(Instruction message, int peer) {
  message.channel = channel(message.lane, Axis::pipeline);
  message.peer = peer;
  return add(std::move(message));
}

// Where a device starts what communicates in the order of issue, a message that waits for its receiver holds
// up what its sender issues behind it, and a receiver that waits what it sends itself. So both are issued
// when the message is made, in a pipeline of equal passes: whatever waits does so for something earlier.
void Builder::issue_receives(int position) {
  for (Inbox& inbox : inboxes_) {
    for (; inbox.next < inbox.messages.size(); ++inbox.next) {
      const Incoming& message = inbox.messages[inbox.next];
      if (message.due > position) break;
      const Chunk& to = partition_.chunk(message.chunk);
      const bool output = inbox.lane == Lane::receive_output;
      const UnitId unit = output ? to.first - 1 : to.end - 1;
      const UnitBuffers& buffers = unit_buffers_[unit];
      const BufferId buffer = (output ? buffers.output : buffers.output_gradient).of(message.microbatch);
      if (buffer < 0) continue;  // a unit without activations of ours to hand on
      begin(buffer, next_id());
      add_message({.op = Opcode::receive,
                   .lane = inbox.lane,
                   .unit = unit,
                   .microbatch = message.microbatch,
                   .operands = {whole(Role::to, buffer, Access::write)},
                   .waits = {}},
                  inbox.from);
    }
  }
}

// A chunk's last forward has made its output, its last backward the gradient of its input.
void Builder::issue_sends(int position) {
  const Slot& slot = slots_[position];
  if (!pipelined() || rests_in(slot.microbatch)) return;
  const int index = partition_.chunk_of(slot.use.unit);
  const Chunk& chunk = partition_.chunk(index);
  const auto send = [&](Lane lane, UnitId unit, BufferId buffer, int to, Pass pass) {
    if (buffer < 0) return;
    const int receiver = partition_.chunk(to).rank;
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
  if (slot.use.pass == Pass::backward && slot.use.unit == chunk.first && index > 0)
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
