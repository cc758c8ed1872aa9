// Copies between spaces for what lives off the device, and the updates, which run where the states are.
#include <cmath>

#include "src/build/builder.h"
#include "src/program/opcodes.h"
#include "tessera/link.h"

namespace tessera {

Space Builder::state_space(FlatId flat) const {
  const auto units = layout_.units().count();
  const auto on_device = static_cast<UnitId>(std::lround(units * offload().states_on_device));
  return layout_.flat(flat).unit < on_device ? Space::device : offload().states;
}

InstructionId Builder::copy(Instruction like, BufferId from, BufferId to) {
  like.op = Opcode::copy;
  like.lane = lane_between(buffer(from).space, buffer(to).space);
  if (buffer(from).flat >= 0) {  // what both have
    const Spread both = finer(buffer(from).spread, buffer(to).spread);
    like.operands = {part(Role::from, from, both, Access::read), part(Role::to, to, both, Access::write)};
  } else {
    like.operands = {whole(Role::from, from, Access::read), whole(Role::to, to, Access::write)};
  }
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
  const FlatBuffers& buffers = flat_buffers_[flat];
  if (buffers.on_host != buffers.parameter) copy(flat, microbatch, buffers.parameter, buffers.on_host);
  return buffers.on_host;
}

BufferId Builder::part_on_device(FlatId flat, int microbatch) {
  const FlatBuffers& buffers = flat_buffers_[flat];
  if (buffers.on_device != buffers.parameter)
    copy(flat, microbatch, part_on_host(flat, microbatch), buffers.on_device);
  return buffers.on_device;
}

void Builder::take_down(FlatId flat) {
  const FlatBuffers& buffers = flat_buffers_[flat];
  if (buffers.host_gradient >= 0) copy(flat, -1, buffers.reduced, buffers.host_gradient);
}

// As many flats' states as fit their memory on the host.
void Builder::prepare_updates() {
  const std::size_t ahead = handed_on_ + static_cast<std::size_t>(offload().staged);
  for (; prepared_ < std::min(ahead, carrying() ? carried_ : updates_.size()); ++prepared_) {
    bring_states(updates_[prepared_].flat);
    // Not of a flat that uses still read: they bring it to the same place.
    if (!updates_early()) bring_parameter(updates_[prepared_].flat);
  }
}

void Builder::hand_on_next() {
  const FlatId flat = updates_[handed_on_++].flat;
  hand_on(flat);
  // While one gradient is read by its update, the next comes down beside it.
  if (updates_early() && host_updates(flat)) touch(flat_buffers_[flat].update.gradient, next_id() - 1);
  prepare_updates();  // in the place of what has just gone
}

// Those whose place is behind the use at this position, or at one before it.
void Builder::issue_updates(int position) {
  // What an update made goes up a use later: copies that the use behind it needs would stand behind it.
  const int later = updates_early() && spec_.strategy.prefetch > 0 ? 1 : 0;
  const auto due = [&](std::size_t update, int at) {
    return update < updates_.size() && updates_[update].behind <= at;
  };
  const int staged = std::min(offload().staged, static_cast<int>(slots_.size()));
  if (due(updated_, position + staged)) prepare_updates();
  while (due(updated_, position)) {
    const FlatId flat = updates_[updated_].flat;
    while (prepared_ <= updated_) hand_on_next();
    if (updates_early()) bring_parameter(flat);
    issue_update(flat);
    ++updated_;
    if (later == 0) hand_on_next();
  }
  while (handed_on_ < updated_ && due(handed_on_, position - later)) hand_on_next();
}

// The updates of the step before that are due ahead of the use at this position.
void Builder::issue_carried(int position) {
  when_ = previous_;
  for (; updated_ < carried_ && updates_[updated_].behind <= position; ++updated_) {
    prepare_updates();
    issue_update(updates_[updated_].flat);
    hand_on_next();
  }
  when_ = -1;
}

// All that is behind the decision depends on it: there are updates only, and what belongs to them.
void Builder::decide() {
  Instruction reduction{.op = Opcode::reduce_scalars,
                        .lane = Lane::compute,
                        .channel = channel(Lane::compute, Axis::world),
                        .operands = {whole(Role::scalars, program_.scalars, Access::modify)},
                        .waits = {}};
  if (decision_ >= 0) reduction.operands.push_back(whole(Role::decision, decision_, Access::write));
  if (previous_ >= 0) reduction.operands.push_back(whole(Role::next_decision, previous_, Access::write));
  add(std::move(reduction));
  when_ = decision_;
}

// What a step leaves to the next, between steps: all of it depends on that step's decision.
Program Builder::build_finish() {
  issue_carried(static_cast<int>(slots_.size()));
  close_lifetimes();
  forget_unused();
  link(program_, nullptr, 0);
  return std::move(program_);
}

// Of the flat's states on the disk, each with what the update touches of it on the host.
std::vector<std::pair<BufferId, BufferId>> Builder::windows_of(FlatId flat) const {
  const FlatBuffers& buffers = flat_buffers_[flat];
  std::vector<std::pair<BufferId, BufferId>> windows;
  const auto add = [&](BufferId state, BufferId at_update) {
    if (state != at_update && state != buffers.parameter) windows.emplace_back(state, at_update);
  };
  add(buffers.master, buffers.update.master);
  for (const std::size_t k : {0, 1}) add(buffers.moments[k], buffers.update.moments[k]);
  return windows;
}

void Builder::bring_states(FlatId flat) {
  for (const auto& [state, window] : windows_of(flat)) copy(flat, -1, state, window);
}

void Builder::bring_parameter(FlatId flat) {
  const FlatBuffers& buffers = flat_buffers_[flat];
  if (buffers.master == buffers.parameter) {
    host_updates(flat) ? part_on_host(flat, -1) : part_on_device(flat, -1);
  } else {
    // Made from its master, in memory that is free of the copies of units before.
    begin(buffers.update.parameter, next_id());
  }
}

void Builder::issue_update(FlatId flat) {
  const auto& touched = flat_buffers_[flat].update;
  Instruction update = about(Opcode::update, host_updates(flat) ? Lane::host : Lane::compute, flat);
  if (updates_early()) update.when = terms_;
  const auto touch_part = [&](Role role, BufferId id, Access access) {
    if (id >= 0) update.operands.push_back(part(role, id, spreads_.states, access));
  };
  touch_part(Role::gradient, touched.gradient, Access::read);
  touch_part(Role::master, touched.master, Access::modify);
  touch_part(Role::moment1, touched.moments[0], Access::modify);
  touch_part(Role::moment2, touched.moments[1], Access::modify);
  if (touched.parameter != touched.master) touch_part(Role::parameter, touched.parameter, Access::write);
  add(std::move(update));
}

// States go back to the disk, parameters to where they live and to the ranks that hold them, too.
void Builder::hand_on(FlatId flat) {
  const FlatBuffers& buffers = flat_buffers_[flat];
  BufferId updated = buffers.update.parameter;
  if (updated == buffers.on_device && buffers.on_host != buffers.parameter && updated != buffers.parameter) {
    copy(flat, -1, updated, buffers.on_host);  // by way of the host
    updated = buffers.on_host;
  }
  if (updated != buffers.parameter) copy(flat, -1, updated, buffers.parameter);
  for (const auto& [state, window] : windows_of(flat)) copy(flat, -1, window, state);
  if (state_over_replicas() && !parameters_over_replicas())
    gather_in_place(flat, buffers.parameter, Axis::replicate);
  if (!parameters_sharded() && state_sharded()) gather_in_place(flat, buffers.parameter, Axis::shard);
}

}  // namespace tessera
