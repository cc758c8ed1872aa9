// What the modules' uses read and write besides parameters and gradients, and from when to when it is kept.
#include <fmt/format.h>

#include "src/build/builder.h"
#include "tessera/error.h"

namespace tessera {

IdVector<UnitGraph> Builder::split_graphs(const Mesh& mesh, const StepSpec& spec) {
  const PipelineSchedule schedule = spec.strategy.pipeline.schedule;
  if (mesh.pipeline == 1 || !splits_backward(schedule) || spec.kind == StepKind::evaluate) return {};
  IdVector<UnitGraph> graphs = spec.activations.units;
  // The last unit's backward follows its forward at once, and makes the losses.
  for (UnitId unit = 0; unit + 1 < graphs.count(); ++unit) graphs[unit] = split_backward(graphs[unit]);
  if (std::ranges::none_of(graphs, &UnitGraph::is_split))
    throw UsageError(fmt::format(
        "pipeline.schedule {} runs weight gradients apart, but no unit before the last declares parts of "
        "backward that write gradients and no value, nor splits_backward; take another schedule, or declare "
        "one of them",
        name_of(schedule)));
  return graphs;
}

// −1 where it takes no memory, or is not there at all: the input of the first unit, say.
BufferId Builder::buffer_of(UnitId unit, ValueId value, int microbatch) const {
  const UnitBuffers& own = unit_buffers_[unit];
  const UnitBuffers none, &before = unit > 0 ? unit_buffers_[unit - 1] : none;
  switch (value) {
    case SharedValue::batch:
      return batch_.of(microbatch);
    case SharedValue::input:
      return before.output.of(microbatch);
    case SharedValue::output:
      return own.output.of(microbatch);
    case SharedValue::output_gradient:
      return own.output_gradient.of(microbatch);
    case SharedValue::input_gradient:
      return before.output_gradient.of(microbatch);
    default: {
      const UnitGraph& declared = graph(unit);
      // What is made of something that is not there is not there either.
      if (exchanges_[unit])
        for (const ValueId made : declared.exchanged_for(value))
          if (buffer_of(unit, declared.values[made].exchanged, microbatch) < 0) return -1;
      if (const ValueId whole = declared.whole(value); whole < 0) return buffer_of(unit, whole, microbatch);
      return own.values[declared.root(value)].of(microbatch);
    }
  }
}

// Whether no step that runs before this one in its pass writes some of the value.
bool Builder::writes_first(UnitId unit, Pass pass, const GraphStep& here, ValueId value) const {
  const UnitGraph& declared = graph(unit);
  const auto writes = [&](const GraphStep& step) {
    if (step.part < 0) return declared.whole(step.value) == value;
    return declared.writes_some(declared.parts[step.part], value);
  };
  for (const GraphStep& step : graph_steps_[unit][pass]) {
    if (step == here) return true;
    if (writes(step)) return false;
  }
  return true;
}

Region Builder::region_of(UnitId unit, ValueId value) const {
  if (graph(unit).whole(value) == value) return Region::of_value(value);
  const ValueSpec& spec = graph(unit).values[value];
  return Region::of_value(value, spec.begin, spec.begin + spec.bytes);
}

// What a part reads, then what it writes. A value that it changes in place is one operand.
void Builder::access_activations(Instruction& use) {
  if (!has_activations()) return;
  const UnitGraph& declared = graph(use.unit);
  const PartSpec& part = declared.parts[use.part];
  const bool again = use.pass == Pass::recompute;
  const auto touch = [&](ValueId value, BufferId id, Access access) {
    Operand& operand = use.operands.emplace_back(whole(role_of(value), id, access));
    if (value >= 0) operand.region = region_of(use.unit, value);
  };
  for (const ValueId value : part.reads) {
    const BufferId id = buffer_of(use.unit, value, use.microbatch);
    if (id < 0) continue;
    const bool fetched =
        value == SharedValue::batch && buffer(id).lifetimes.empty();  // by this use, the first that reads
    if (fetched) begin(id, next_id());
    touch(value, id, fetched ? Access::write : part.writes_value(value) ? Access::modify : Access::read);
    keep_until_exchanged(use, value);
  }
  for (const ValueId value : part.writes) {
    const BufferId id = buffer_of(use.unit, value, use.microbatch);
    const ValueId whole = declared.whole(value);
    if (id < 0 || (again && whole == SharedValue::output) || part.reads_value(value)) continue;
    // What was kept is written again, with the same bits, where it lies; so is what is over another value.
    const bool stays = whole >= 0 && (declared.values[whole].over != kNoValue ||
                                      (again && declared.is_kept(whole, choice_of(use.unit))));
    const bool in_pieces = value != whole || (value >= 0 && declared.values[value].in_pieces);
    const bool goes_on = in_pieces && !writes_first(use.unit, use.pass, {.part = use.part}, whole);
    if (buffer(id).lifetimes.empty() || !(stays || goes_on)) begin(id, next_id());
    touch(value, id, Access::write);
  }
  if (part.workspace_bytes == 0) return;
  const BufferId scratch = unit_buffers_[use.unit].workspaces.at(part.workspace_bytes);
  begin(scratch, next_id());
  use.operands.push_back(whole(Role::workspace, scratch, Access::write));
}

// What travels in pieces keeps its memory until a part reads what the last piece makes. Parts run meanwhile:
// they would wait for it if they wrote there.
void Builder::keep_until_exchanged(const Instruction& reader, ValueId read) {
  if (spec_.strategy.prefetch == 0 || !exchanges_[reader.unit]) return;
  const UnitGraph& declared = graph(reader.unit);
  for (const ValueId made : declared.exchanged_for(read))
    if (declared.whole(made) != made)
      touch(buffer_of(reader.unit, declared.values[made].exchanged, reader.microbatch), next_id());
}

// Whether it is gathered or summed follows from how the value that it is made of is held.
void Builder::exchange(const Slot& slot, ValueId value) {
  const UnitId unit = slot.use.unit;
  const ValueSpec& made = graph(unit).values[value];
  const bool gathers = made.held == Held::copied;
  const BufferId from = buffer_of(unit, made.exchanged, slot.microbatch);
  const BufferId to = buffer_of(unit, value, slot.microbatch);
  if (from < 0 || to < 0) return;  // it takes no memory
  Instruction exchanged = {
      .op = gathers ? Opcode::all_gather : Opcode::reduce_scatter,
      .lane = Lane::exchange,
      .pass = slot.use.pass,
      .unit = unit,
      .microbatch = slot.microbatch,
      .channel = channel(Lane::exchange, Axis::tensor),
      .operands = {whole(Role::from, from, Access::read), whole(Role::to, to, Access::write)},
      .waits = {}};
  exchanged.operands[0].region = region_of(unit, made.exchanged);
  exchanged.operands[1].region = region_of(unit, value);
  const ValueId whole = graph(unit).whole(value);
  if (writes_first(unit, slot.use.pass, {.value = value}, whole)) begin(to, next_id());
  add(std::move(exchanged));
}

// The step behind which the use at `position` has all that the next one begins with, where that is an
// exchange of what this one hands on, and parts follow that it need not wait for; past all steps elsewhere.
std::size_t Builder::hands_on_at(int position) const {
  const Slot& slot = slots_[position];
  const std::vector<GraphStep>& steps = graph_steps_[slot.use.unit][slot.use.pass];
  const std::size_t none = steps.size();
  const bool forward = slot.use.pass == Pass::forward;
  if (spec_.strategy.prefetch == 0 || position + 1 == slots_.count()) return none;
  const Slot& next = slots_[position + 1];
  const Use expected{.unit = slot.use.unit + (forward ? 1 : -1), .pass = slot.use.pass};
  if (slot.use.edge != UseEdge::whole || next.use != expected || next.microbatch != slot.microbatch ||
      (!forward && slot.use.pass != Pass::backward))
    return none;
  const std::vector<GraphStep>& following = graph_steps_[next.use.unit][next.use.pass];
  if (following.empty() || following[0].value == kNoValue) return none;
  const UnitGraph& declared = graph(slot.use.unit);
  const ValueId handed = forward ? SharedValue::output : SharedValue::input_gradient;
  std::size_t last = none;
  for (std::size_t k = 0; k < steps.size(); ++k)
    if (steps[k].part >= 0 && declared.writes_some(declared.parts[steps[k].part], handed)) last = k;
  return last + 1 < none ? last : none;
}

// With the use before still running: where the thread that issues also computes, it travels meanwhile.
void Builder::exchange_ahead(Slot& slot) {
  const UnitGraph& declared = graph(slot.use.unit);
  const ValueId handed = slot.use.pass == Pass::forward ? SharedValue::input : SharedValue::output_gradient;
  for (const GraphStep& step : graph_steps_[slot.use.unit][slot.use.pass]) {
    if (step.value == kNoValue || declared.whole(declared.source(step.value)) != handed) return;
    exchange(slot, step.value);
    ++slot.exchanged_ahead;
  }
}

// Between its forward and its backward. The last unit's follow each other.
bool Builder::leaves_device(UnitId unit) const {
  return train() && unit + 1 < layout_.units().count() && choice_of(unit).kept == Space::host;
}

std::vector<Builder::Waiting> Builder::waiting_of(const Slot& slot) const {
  const UnitId unit = slot.use.unit;
  const UnitBuffers& own = unit_buffers_[unit];
  std::vector<Waiting> all;
  if (rests_in(slot.microbatch)) return all;
  const auto add = [&](const PerMicrobatch& device, const PerMicrobatch& host) {
    if (!host.empty()) all.push_back({device.of(slot.microbatch), host.of(slot.microbatch)});
  };
  for (ValueId value = 0; value < own.values_on_host.count(); ++value)
    add(own.values[value], own.values_on_host[value]);
  if (unit > 0) add(unit_buffers_[unit - 1].output, own.input_on_host);
  return all;
}

// Behind the unit's forward; the next use need not wait for it.
void Builder::take_down_activations(int position) {
  const Slot& slot = slots_[position];
  if (slot.use.pass != Pass::forward) return;
  for (const auto& [device, host] : waiting_of(slot)) {
    const InstructionId id = copy(
        {.unit = slot.use.unit, .microbatch = slot.microbatch, .operands = {}, .waits = {}}, device, host);
    release_behind(device, id, position);
  }
}

// For the use at `position` and, with prefetch, for the next. The first use since its unit's forward brings
// what the others need, too.
void Builder::bring_activations(int position) {
  const int ahead = spec_.strategy.prefetch > 0 ? 1 : 0;
  const Slot& running = slots_[position];
  for (int at = position; at <= position + ahead && at < slots_.count(); ++at) {
    Slot& slot = slots_[at];
    // Weight gradients find what their backward brought.
    if (slot.use.pass == Pass::forward || slot.use.pass == Pass::weight_gradient || slot.brought) continue;
    const bool same = slot.use.unit == running.use.unit && slot.microbatch == running.microbatch;
    if (at > position && same) continue;  // the running use brought it, or has yet to make it
    slot.brought = true;
    const bool recomputed =
        at > 0 && slots_[at - 1].use == Use{.unit = slot.use.unit, .pass = Pass::recompute};
    if (recomputed) continue;
    for (const auto& [device, host] : waiting_of(slot))
      copy({.unit = slot.use.unit, .microbatch = slot.microbatch, .operands = {}, .waits = {}}, host, device);
  }
}

}  // namespace tessera
