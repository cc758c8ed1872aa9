#include <fmt/format.h>

#include <algorithm>

#include "src/program/builder.h"
#include "tessera/memory_plan.h"

namespace tessera {
namespace {

void check_spec(const Layout& layout, const Mesh& mesh, const StepSpec& spec) {
  spec.strategy.check();
  if (layout.shards() != mesh.shard)
    throw UsageError(fmt::format("layout has {} shards, but the mesh's shard axis has {} ranks",
                                 layout.shards(), mesh.shard));
  if (mesh.pipeline != 1 || mesh.replicate != 1 || mesh.tensor != 1)
    throw UnsupportedError(fmt::format("mesh {}: this version runs the shard axis only", to_string(mesh)));
  if (spec.microbatches < 1)
    throw UsageError(fmt::format("microbatches is {}; it must be at least 1", spec.microbatches));
  if (spec.moments < 0 || spec.moments > 2)
    throw UsageError(fmt::format("moments is {}; it must be 0 to 2", spec.moments));
  const std::size_t units = spec.activations.units.size();
  if (units != 0 && units != layout.units().size())
    throw UsageError(
        fmt::format("activations are given for {} units; the model has {}", units, layout.units().size()));
  if (units != 0 && !spec.order.empty() &&
      spec.order != default_order(static_cast<int>(units), spec.strategy.recompute))
    throw UsageError(
        "activations flow along the default order; a trainer with an order of its own keeps its own "
        "activations");
}

void insert_sorted(std::vector<BufferId>& list, BufferId id) {
  const auto at = std::lower_bound(list.begin(), list.end(), id);
  if (at == list.end() || *at != id) list.insert(at, id);
}

}  // namespace

Builder::Builder(const Layout& layout, const Mesh& mesh, const StepSpec& spec)
    : layout_(layout), spec_(spec), placements_(spec.strategy.placements) {
  check_spec(layout, mesh, spec);
  reduce_when_ = spec.strategy.reduce_when(spec.microbatches);
  if (layout.shards() == 1) placements_ = {};  // the one shard is the whole: a gathered copy would double it
  program_.placements = placements_;
  program_.kind = spec.kind;
  program_.microbatches = spec.microbatches;
  for (const UnitSpec& unit : layout.units()) program_.units.push_back(unit.name);
  program_.flat_buffers.resize(layout.flats().size());
  program_.unit_buffers.resize(layout.units().size());
}

bool Builder::resident(UnitId unit) const {
  return unit >= static_cast<UnitId>(layout_.units().size()) - spec_.strategy.resident_units;
}

std::span<const FlatId> Builder::read_by(const Use& use) const {
  const UnitSpec& unit = layout_.units()[static_cast<std::size_t>(use.unit)];
  if (!reads_parameters(unit, use.pass)) return {};
  return layout_.flats_used_by(use.unit);
}

Program Builder::build() {
  for (FlatId flat = 0; flat < static_cast<FlatId>(layout_.flats().size()); ++flat) add_flat_buffers(flat);
  for (UnitId unit = 0; unit < static_cast<UnitId>(layout_.units().size()); ++unit) add_unit_buffers(unit);
  add_scalars();
  lay_out_uses();
  find_residences();
  for (int position = 0; position < static_cast<int>(slots_.size()); ++position) {
    issue_gathers(position);
    issue_use(position);
    issue_reductions(position);
  }
  issue_end();
  close_lifetimes();
  link(program_, nullptr, 0);
  return std::move(program_);
}

void Builder::lay_out_uses() {
  const std::vector<Use> uses = uses_of(layout_, spec_);
  backward_positions_.resize(layout_.flats().size());
  for (int microbatch = 0; microbatch < spec_.microbatches; ++microbatch) {
    for (std::size_t k = 0; k < uses.size(); ++k) {
      const Use& use = uses[k];
      const int position = static_cast<int>(slots_.size());
      slots_.push_back({.use = use, .microbatch = microbatch, .first_of_microbatch = k == 0});
      if (use.pass != Pass::backward) continue;
      for (FlatId flat : layout_.flats_used_by(use.unit))
        if (trains(flat)) backward_positions_[static_cast<std::size_t>(flat)].push_back(position);
    }
  }
}

// Whether a flat gathered for the use at `from` stays for its next use at `to`.
bool Builder::stays(FlatId flat, int from, int to) const {
  if (to == from + 1) return true;
  const Slot& a = slots_[static_cast<std::size_t>(from)];
  const Slot& b = slots_[static_cast<std::size_t>(to)];
  if (a.use.edge == UseEdge::open) return true;  // the opened use is still running
  return a.microbatch == b.microbatch && resident(layout_.flat(flat).unit);
}

void Builder::find_residences() {
  if (!parameters_sharded()) return;
  std::vector<int> current(layout_.flats().size(), -1);  // index into residences_
  std::vector<int> open(layout_.flats().size(), 0);      // uses opened and not yet closed
  for (int position = 0; position < static_cast<int>(slots_.size()); ++position) {
    const Use& use = slots_[static_cast<std::size_t>(position)].use;
    for (FlatId flat : read_by(use)) {
      int& at = current[static_cast<std::size_t>(flat)];
      int& nested = open[static_cast<std::size_t>(flat)];
      const int previous = at < 0 ? -1 : residences_[static_cast<std::size_t>(at)].last;
      if (at >= 0 && (nested > 0 || stays(flat, previous, position))) {
        residences_[static_cast<std::size_t>(at)].last = position;
      } else {
        at = static_cast<int>(residences_.size());
        residences_.push_back({.flat = flat, .first = position, .last = position, .earliest = previous + 1});
      }
      nested += use.edge == UseEdge::open ? 1 : use.edge == UseEdge::close ? -1 : 0;
    }
  }
}

InstructionId Builder::add(Instruction instruction) {
  const auto id = static_cast<InstructionId>(program_.instructions.size());
  for (BufferId read : instruction.reads) touch(read, id);
  for (BufferId write : instruction.writes) touch(write, id);
  program_.instructions.push_back(std::move(instruction));
  return id;
}

// An access keeps the lifetime that is open around it, if one is, alive until here at least.
void Builder::touch(BufferId id, InstructionId instruction) {
  Buffer& touched = buffer(id);
  if (touched.persistent) return;
  if (touched.lifetimes.empty())
    throw Error(fmt::format("builder: '{}' is touched before it lives", touched.name));
  touched.lifetimes.back().last = std::max(touched.lifetimes.back().last, instruction);
}

void Builder::begin(BufferId id, InstructionId instruction) {
  if (!buffer(id).persistent) buffer(id).lifetimes.push_back({instruction, instruction});
}

// With prefetch, the memory stays taken while the use behind `position` runs (with its recompute), so that
// this use need not wait for the reduction that reads it.
void Builder::release_behind(BufferId id, InstructionId instruction, int position) {
  if (buffer(id).persistent || spec_.strategy.prefetch == 0) return;
  const int last = static_cast<int>(slots_.size()) - 1;
  int until = std::min(position + 1, last);
  if (slots_[static_cast<std::size_t>(until)].use.pass == Pass::recompute) until = std::min(until + 1, last);
  pending_ends_.push_back({id, instruction, until});
}

void Builder::close_lifetimes() {
  for (const PendingEnd& pending : pending_ends_) {
    const InstructionId use = slots_[static_cast<std::size_t>(pending.position)].instruction;
    // Found by where it began, as the buffer may have begun again since.
    for (Lifetime& lifetime : buffer(pending.buffer).lifetimes)
      if (lifetime.first <= pending.at_least && lifetime.last == pending.at_least)
        lifetime.last = std::max(lifetime.last, use);
  }
}

int Builder::channel(Lane lane) {
  const Channel wanted{Axis::shard, lane};
  const auto found = std::find(program_.channels.begin(), program_.channels.end(), wanted);
  if (found != program_.channels.end()) return static_cast<int>(found - program_.channels.begin());
  program_.channels.push_back(wanted);
  return static_cast<int>(program_.channels.size()) - 1;
}

Instruction Builder::about(Opcode op, Lane lane, FlatId flat) const {
  return {.op = op,
          .lane = lane,
          .unit = layout_.flat(flat).unit,
          .flat = flat,
          .waits = {},
          .reads = {},
          .writes = {}};
}

void Builder::issue_gathers(int position) {
  for (Residence& residence : residences_) {
    if (residence.gather >= 0 || residence.first > position + spec_.strategy.prefetch) continue;
    if (residence.earliest > position) continue;
    const FlatBuffers& buffers = program_.flat_buffers[static_cast<std::size_t>(residence.flat)];
    Instruction gather = about(Opcode::all_gather, Lane::gather, residence.flat);
    gather.microbatch = slots_[static_cast<std::size_t>(residence.first)].microbatch;
    gather.channel = channel(Lane::gather);
    gather.reads = {buffers.parameter};
    gather.writes = {buffers.gathered};
    begin(buffers.gathered, static_cast<InstructionId>(program_.instructions.size()));
    residence.gather = add(std::move(gather));
  }
}

void Builder::issue_use(int position) {
  Slot& slot = slots_[static_cast<std::size_t>(position)];
  Instruction use{.op = Opcode::use,
                  .lane = Lane::compute,
                  .pass = slot.use.pass,
                  .edge = slot.use.edge,
                  .unit = slot.use.unit,
                  .microbatch = slot.microbatch,
                  .waits = {},
                  .reads = {},
                  .writes = {}};
  access_parameters(slot.use, use);
  if (slot.use.pass == Pass::backward) access_gradients(use, position);
  access_activations(use, position);
  slot.instruction = add(std::move(use));
}

void Builder::access_parameters(const Use& of, Instruction& use) {
  for (FlatId flat : read_by(of))
    insert_sorted(use.reads, program_.flat_buffers[static_cast<std::size_t>(flat)].gathered);
}

void Builder::access_gradients(Instruction& use, int position) {
  for (FlatId flat : layout_.flats_used_by(use.unit)) {
    if (!trains(flat)) continue;
    const BufferId gradient = program_.flat_buffers[static_cast<std::size_t>(flat)].gradient;
    const std::vector<int>& positions = backward_positions_[static_cast<std::size_t>(flat)];
    const auto at = std::lower_bound(positions.begin(), positions.end(), position);
    const bool first =
        at == positions.begin() || slots_[static_cast<std::size_t>(*(at - 1))].microbatch != use.microbatch;
    if (first) {
      begin(gradient, static_cast<InstructionId>(program_.instructions.size()));
    } else {
      insert_sorted(use.reads, gradient);
    }
    insert_sorted(use.writes, gradient);
  }
}

void Builder::access_activations(Instruction& use, int position) {
  const auto id = static_cast<InstructionId>(program_.instructions.size());
  const auto fresh = [&](BufferId written) {
    if (written < 0) return;
    begin(written, id);
    insert_sorted(use.writes, written);
  };
  const auto read = [&](BufferId read_from) {
    if (read_from >= 0) insert_sorted(use.reads, read_from);
  };
  if (program_.batch >= 0)
    slots_[static_cast<std::size_t>(position)].first_of_microbatch ? fresh(program_.batch)
                                                                   : read(program_.batch);
  const UnitBuffers& own = program_.unit_buffers[static_cast<std::size_t>(use.unit)];
  fresh(own.workspace);
  if (use.unit > 0) read(program_.unit_buffers[static_cast<std::size_t>(use.unit) - 1].output);
  switch (use.pass) {
    case Pass::forward:
      fresh(own.output);
      fresh(own.saved);  // ends here where a recompute will write it again
      break;
    case Pass::recompute:
      fresh(own.saved);
      break;
    case Pass::backward:
      read(own.saved);
      read(own.output_gradient);
      if (use.unit > 0) fresh(program_.unit_buffers[static_cast<std::size_t>(use.unit) - 1].output_gradient);
      break;
  }
}

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
    if (nothing_to_add()) {
      after_last_reduction(flat);
      continue;
    }
    const FlatBuffers& buffers = program_.flat_buffers[static_cast<std::size_t>(flat)];
    BufferId from = buffers.gradient;
    bool accumulate = slot.microbatch > 0;
    if (reduce_when_ == ReduceWhen::last) {
      Instruction sum = about(Opcode::accumulate, Lane::compute, flat);
      sum.microbatch = slot.microbatch;
      sum.accumulate = accumulate;
      sum.reads = {buffers.gradient};
      if (accumulate) {
        insert_sorted(sum.reads, buffers.local_sum);
      } else {
        begin(buffers.local_sum, static_cast<InstructionId>(program_.instructions.size()));
      }
      sum.writes = {buffers.local_sum};
      add(std::move(sum));
      if (!last_microbatch) continue;
      from = buffers.local_sum;
      accumulate = false;
    }
    reduce(flat, slot.microbatch, from, accumulate);
    release_behind(from, static_cast<InstructionId>(program_.instructions.size()) - 1, position);
    if (last_microbatch) after_last_reduction(flat);
  }
}

void Builder::reduce(FlatId flat, int microbatch, BufferId from, bool accumulate) {
  const BufferId accumulator = program_.flat_buffers[static_cast<std::size_t>(flat)].accumulator;
  Instruction reduction = about(Opcode::reduce_scatter, Lane::reduce, flat);
  reduction.microbatch = microbatch;
  reduction.channel = channel(Lane::reduce);
  reduction.accumulate = accumulate;
  reduction.reads = {from};
  if (accumulate) insert_sorted(reduction.reads, accumulator);
  reduction.writes = {accumulator};
  add(std::move(reduction));
}

void Builder::after_last_reduction(FlatId flat) {
  const BufferId reduced = program_.flat_buffers[static_cast<std::size_t>(flat)].reduced;
  Instruction squares = about(Opcode::square_sum, Lane::reduce, flat);
  squares.reads = {reduced};
  squares.writes = {program_.scalars};
  add(std::move(squares));
  if (state_sharded() || layout_.shards() == 1) return;
  // Every rank updates everything, so every rank needs every slice of the reduced gradient.
  Instruction gather = about(Opcode::all_gather, Lane::gather, flat);
  gather.channel = channel(Lane::gather);
  gather.reads = {reduced};
  gather.writes = {reduced};
  add(std::move(gather));
}

void Builder::issue_end() {
  Instruction decide{.op = Opcode::reduce_scalars,
                     .lane = Lane::compute,
                     .channel = channel(Lane::compute),
                     .waits = {},
                     .reads = {program_.scalars},
                     .writes = {program_.scalars}};
  add(std::move(decide));
  if (!train()) return;
  for (FlatId flat = 0; flat < static_cast<FlatId>(layout_.flats().size()); ++flat) {
    if (!trains(flat)) continue;
    const FlatBuffers& buffers = program_.flat_buffers[static_cast<std::size_t>(flat)];
    Instruction update = about(Opcode::update, Lane::compute, flat);
    update.reads = {buffers.reduced};
    insert_sorted(update.reads, program_.scalars);
    for (BufferId state : {buffers.master, buffers.moments[0], buffers.moments[1]}) {
      if (state < 0) continue;
      insert_sorted(update.reads, state);
      insert_sorted(update.writes, state);
    }
    insert_sorted(update.writes, buffers.parameter);
    add(std::move(update));
    if (parameters_sharded() || !state_sharded()) continue;
    Instruction gather = about(Opcode::all_gather, Lane::gather, flat);
    gather.channel = channel(Lane::gather);
    gather.reads = {buffers.parameter};
    gather.writes = {buffers.parameter};
    add(std::move(gather));
  }
}

Program build_step(const Layout& layout, const Mesh& mesh, const StepSpec& spec) {
  return Builder(layout, mesh, spec).build();
}

}  // namespace tessera
