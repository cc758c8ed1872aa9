// Copies between spaces for what lives off the device, and the updates, which run where the states are.
#include <cmath>

#include "src/program/builder.h"
#include "src/program/opcodes.h"

namespace tessera {

Space Builder::state_space(FlatId flat) const {
  const auto units = static_cast<double>(layout_.units().size());
  const auto on_device = static_cast<UnitId>(std::lround(units * offload().states_on_device));
  return layout_.flat(flat).unit < on_device ? Space::device : offload().states;
}

InstructionId Builder::copy(Instruction like, BufferId from, BufferId to) {
  like.op = Opcode::copy;
  like.lane = lane_between(buffer(from).space, buffer(to).space);
  like.reads = {from};
  like.writes = {to};
  begin(to, next_id());
  return add(std::move(like));
}

InstructionId Builder::copy(FlatId flat, int microbatch, BufferId from, BufferId to) {
  Instruction like = about(Opcode::copy, Lane::upload, flat);
  like.microbatch = microbatch;
  return copy(std::move(like), from, to);
}

// The parameter's part on the host: brought there, unless it lives there.
BufferId Builder::part_on_host(FlatId flat, int microbatch) {
  const FlatBuffers& buffers = program_.flat_buffers[static_cast<std::size_t>(flat)];
  if (buffers.on_host != buffers.parameter) copy(flat, microbatch, buffers.parameter, buffers.on_host);
  return buffers.on_host;
}

BufferId Builder::part_on_device(FlatId flat, int microbatch) {
  const FlatBuffers& buffers = program_.flat_buffers[static_cast<std::size_t>(flat)];
  if (buffers.on_device != buffers.parameter)
    copy(flat, microbatch, part_on_host(flat, microbatch), buffers.on_device);
  return buffers.on_device;
}

// A sum over microbatches that waits on the host comes back to be continued. One over this rank's
// microbatches alone never leaves.
void Builder::resume_sum(FlatId flat, int microbatch) {
  const FlatBuffers& buffers = program_.flat_buffers[static_cast<std::size_t>(flat)];
  if (buffers.host_gradient >= 0) copy(flat, microbatch, buffers.host_gradient, buffers.accumulator);
}

void Builder::take_down(FlatId flat, int microbatch) {
  const FlatBuffers& buffers = program_.flat_buffers[static_cast<std::size_t>(flat)];
  if (buffers.host_gradient >= 0) copy(flat, microbatch, buffers.reduced, buffers.host_gradient);
}

// What the host updates comes first: the device's own then run beside it.
void Builder::issue_updates() {
  std::vector<FlatId> flats;
  for (const bool on_host : {true, false})
    for (FlatId flat = 0; flat < static_cast<FlatId>(layout_.flats().size()); ++flat)
      if (trains(flat) && host_updates(flat) == on_host) flats.push_back(flat);
  std::size_t prepared = 0;
  const auto prepare_until = [&](std::size_t count) {
    for (; prepared < std::min(count, flats.size()); ++prepared) prepare_update(flats[prepared]);
  };
  const auto staged = static_cast<std::size_t>(offload().staged);
  prepare_until(staged);  // whatever the decision will be
  Instruction decide{.op = Opcode::reduce_scalars,
                     .lane = Lane::compute,
                     .channel = channel(Lane::compute, Axis::world),
                     .waits = {},
                     .reads = {program_.scalars},
                     .writes = {program_.scalars}};
  add(std::move(decide));
  for (std::size_t next = 0; next < flats.size(); ++next) {
    issue_update(flats[next]);
    hand_on(flats[next]);
    prepare_until(next + 1 + staged);  // in the place of what has just gone
  }
}

// Of the flat's states on the disk, each with what the update touches of it on the host.
std::vector<std::pair<BufferId, BufferId>> Builder::windows_of(FlatId flat) const {
  const FlatBuffers& buffers = program_.flat_buffers[static_cast<std::size_t>(flat)];
  std::vector<std::pair<BufferId, BufferId>> windows;
  const auto add = [&](BufferId state, BufferId at_update) {
    if (state != at_update && state != buffers.parameter) windows.emplace_back(state, at_update);
  };
  add(buffers.master, buffers.update.master);
  for (const std::size_t k : {0, 1}) add(buffers.moments[k], buffers.update.moments[k]);
  return windows;
}

// Brings what the update reads of what is elsewhere.
void Builder::prepare_update(FlatId flat) {
  const FlatBuffers& buffers = program_.flat_buffers[static_cast<std::size_t>(flat)];
  for (const auto& [state, window] : windows_of(flat)) copy(flat, -1, state, window);
  if (buffers.master == buffers.parameter) {
    host_updates(flat) ? part_on_host(flat, -1) : part_on_device(flat, -1);
  } else {
    // Made from its master, in memory that is free of the copies of units before.
    begin(buffers.update.parameter, next_id());
  }
}

void Builder::issue_update(FlatId flat) {
  const UpdateBuffers& touched = program_.flat_buffers[static_cast<std::size_t>(flat)].update;
  Instruction update = about(Opcode::update, host_updates(flat) ? Lane::host : Lane::compute, flat);
  update.reads = {touched.gradient};
  insert_sorted(update.reads, program_.scalars);
  for (BufferId state : {touched.master, touched.moments[0], touched.moments[1]}) {
    if (state < 0) continue;
    insert_sorted(update.reads, state);
    insert_sorted(update.writes, state);
  }
  insert_sorted(update.writes, touched.parameter);
  add(std::move(update));
}

// States go back to the disk, parameters to where they live and to the ranks that hold them, too.
void Builder::hand_on(FlatId flat) {
  const FlatBuffers& buffers = program_.flat_buffers[static_cast<std::size_t>(flat)];
  BufferId updated = buffers.update.parameter;
  if (updated == buffers.on_device && buffers.on_host != buffers.parameter && updated != buffers.parameter) {
    copy(flat, -1, updated, buffers.on_host);  // by way of the host
    updated = buffers.on_host;
  }
  if (updated != buffers.parameter) copy(flat, -1, updated, buffers.parameter);
  for (const auto& [state, window] : windows_of(flat)) copy(flat, -1, window, state);
  if (program_.state_over_replicas && !program_.parameters_over_replicas)
    gather_in_place(flat, buffers.parameter, Axis::replicate);
  if (!parameters_sharded() && state_sharded()) gather_in_place(flat, buffers.parameter, Axis::shard);
}

}  // namespace tessera
