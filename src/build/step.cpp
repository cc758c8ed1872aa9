#include <fmt/format.h>

#include <algorithm>

#include "src/build/builder.h"
#include "src/build/holders.h"
#include "tessera/link.h"

namespace tessera {

std::vector<int> first_data_ranks(std::span<const StepSpec> specs) {
  std::vector<int> first = {0};
  for (const StepSpec& spec : specs)
    if (spec.last_round_ranks > 0) first.push_back(spec.last_round_ranks);
  std::ranges::sort(first);
  first.erase(std::unique(first.begin(), first.end()), first.end());
  return first;
}

Builder::Builder(const Layout& layout, const Mesh& mesh, const StepSpec& spec, int pipeline_rank,
                 int data_rank)
    : layout_(layout),
      mesh_((check_spec(layout, mesh, spec), mesh)),
      spec_(spec),
      split_graphs_(split_graphs(mesh, spec)),
      pipeline_rank_(pipeline_rank),
      rounds_(rounds_of(spec)),
      partition_(layout.units().count(), mesh.pipeline, spec.strategy.pipeline),
      spreads_(spreads_of(spec.strategy, mesh)) {
  if (pipeline_rank < 0 || pipeline_rank >= mesh.pipeline)
    throw UsageError(fmt::format("build_step: pipeline rank {} does not exist; the mesh has 0 to {}",
                                 pipeline_rank, mesh.pipeline - 1));
  if (data_rank < 0 || data_rank >= mesh.data_ranks())
    throw UsageError(fmt::format("build_step: data rank {} does not exist; the mesh has 0 to {}", data_rank,
                                 mesh.data_ranks() - 1));
  reduce_when_ = spec.strategy.reduce_when(rounds_);
  program_.pipeline_rank = pipeline_rank;
  has_secondary_.resize(layout.flats().size());
  program_.kind = spec.kind;
  program_.microbatches = spec.microbatches;
  program_.last_round_ranks = spec.last_round_ranks;
  program_.blocks = rounds_.blocks;
  program_.rests = rounds_.rests(mesh, data_rank);
  for (const UnitSpec& unit : layout.units()) program_.units.push_back({.name = unit.name});
  for (UnitId unit = 0; unit < spec.activations.units.count(); ++unit) {
    UnitOutline& outline = program_.units[unit];
    for (const PartSpec& part : graph(unit).parts) outline.parts.push_back(part.name);
    for (ValueId value = 0; value < graph(unit).values.count(); ++value) {
      const ValueSpec& of = graph(unit).values[value];
      if (of.exchanged != kNoValue) outline.exchanged.push_back({value, of.exchanged});
      if (of.piece_of != kNoValue)
        outline.pieces.push_back({value, of.piece_of, of.begin, of.begin + of.bytes});
    }
  }
  for (const UnitGraph& unit : spec.activations.units) exchanges_.push_back(unit.has_exchanges());
  for (UnitId unit = 0; unit < layout.units().count(); ++unit)
    choices_.push_back(spec.strategy.activations_of(unit));
  graph_steps_.resize(layout.units().size());
  for (UnitId unit = 0; unit < graph_steps_.count(); ++unit)
    for (const Pass pass : {Pass::forward, Pass::recompute, Pass::backward, Pass::weight_gradient})
      graph_steps_[unit][pass] = has_activations() ? graph(unit).steps_in(pass, choice_of(unit), spec.kind)
                                                   : std::vector<GraphStep>{{.part = -1}};
  flat_buffers_.resize(layout.flats().size());
  unit_buffers_.resize(layout.units().size());
}

bool Builder::resident(UnitId unit) const {
  return unit >= layout_.units().count() - spec_.strategy.resident_units;
}

std::span<const FlatId> Builder::read_by(const Use& use) const {
  const UnitSpec& unit = layout_.units()[use.unit];
  if (!reads_parameters(unit, use.pass)) return {};
  return layout_.flats_used_by(use.unit);
}

Program Builder::build() {
  holders_ = holders_of(layout_, partition_);
  for (FlatId flat = 0; flat < layout_.flats().count(); ++flat)
    if (held(flat)) add_flat_buffers(flat);
  for (UnitId unit = 0; unit < layout_.units().count(); ++unit) add_unit_buffers(unit);
  add_scalars();
  add_decisions();
  add_batch();
  lay_out_uses();
  lay_out_updates();
  if (spec_.kind == StepKind::finish) return build_finish();
  find_residences();
  find_messages();
  for (int position = 0; position < slots_.count(); ++position) {
    slots_[position].begin = next_id();
    issue_carried(position);
    bring_activations(position);
    issue_gathers(position);
    issue_receives(position);
    issue_use(position);
    take_down_activations(position);
    issue_sends(position);
    issue_reductions(position);
    if (updates_early()) issue_updates(position);
  }
  end_begin_ = next_id();
  issue_end();
  close_lifetimes();
  compact();
  forget_unused();
  link(program_, nullptr, 0);
  return std::move(program_);
}

void Builder::lay_out_uses() {
  backward_positions_.resize(layout_.flats().size());
  written_ = IdVector<bool>(layout_.parameters());
  holds_gradient_.resize(written_.size());
  if (!spec_.order.empty()) {
    lay_out_order();
  } else {
    if (pipelined()) find_times();
    lay_out_passes();
  }
  for (int position = 0; position < slots_.count(); ++position) {
    const Slot& slot = slots_[position];
    if (slot.use.pass != gradient_pass(slot.use.unit)) continue;
    const ParameterId first = layout_.first_parameter(slot.use.unit);
    const auto count = layout_.units()[slot.use.unit].parameters.size();
    for (ParameterId id = first; id < first + static_cast<ParameterId>(count); ++id)
      written_[layout_.place(id).home] = true;
    for (FlatId flat : layout_.flats_used_by(slot.use.unit)) {
      if (!trains(flat)) continue;
      std::vector<int>& positions = backward_positions_[flat];
      if (!positions.empty() && slots_[positions.back()].microbatch > slot.microbatch)
        throw UnsupportedError(fmt::format(
            "unit '{}' and another chunk of pipeline rank {} share parameters, and schedule {} runs several "
            "microbatches through one before the other, so that no single sum of gradients can hold both; "
            "take another schedule, or cut the chain so that they lie on different ranks, if its schedule "
            "lets you",
            layout_.units()[slot.use.unit].name, pipeline_rank_, name_of(spec_.strategy.pipeline.schedule)));
      positions.push_back(position);
    }
  }
}

void Builder::find_times() {
  times_ = PassTimes(spec_.strategy.pipeline.schedule, shape(), spec_.kind);
  starts_ = IdVector<std::vector<int>>(mesh_.pipeline);
  for (int chunk = 0; chunk < static_cast<int>(partition_.chunks().size()); ++chunk) {
    std::vector<int>& of_rank = starts_[partition_.chunk(chunk).rank];
    const std::vector<int> more = times_.starts(chunk);
    of_rank.insert(of_rank.end(), more.begin(), more.end());
  }
  for (std::vector<int>& starts : starts_) std::ranges::sort(starts);
}

void Builder::lay_out_passes() {
  std::map<std::pair<int, Pass>, std::vector<Use>> known;
  for (const ChunkPass& pass : pipeline_order(spec_.strategy.pipeline.schedule, shape(), pipeline_rank_)) {
    if (!train() && pass.pass != Pass::forward) continue;
    const auto [uses, is_new] = known.try_emplace({pass.chunk, pass.pass});
    if (is_new) uses->second = uses_in(pass.chunk, pass.pass);
    const int time = pipelined() ? times_.start(pass.chunk, pass.microbatch, pass.pass) : 0;
    for (const Use& use : uses->second)
      slots_.push_back({.use = use, .microbatch = pass.microbatch, .time = time});
  }
}

std::vector<Use> Builder::uses_in(int chunk, Pass pass) const {
  std::vector<Use> uses;
  if (pass == Pass::weight_gradient) {
    for (UnitId unit = partition_.chunk(chunk).end - 1; unit >= partition_.chunk(chunk).first; --unit)
      if (graph(unit).is_split) uses.push_back({unit, pass});
    return uses;
  }
  uses = default_order(layout_.units().count(), spec_);
  std::erase_if(uses, [&](const Use& use) {
    return partition_.chunk_of(use.unit) != chunk || (use.pass == Pass::forward) != (pass == Pass::forward);
  });
  return uses;
}

void Builder::lay_out_order() {
  const std::vector<Use> uses = uses_of(layout_, spec_);
  for (int microbatch = 0; microbatch < spec_.microbatches; ++microbatch)
    for (const Use& use : uses) slots_.push_back({.use = use, .microbatch = microbatch});
}

// Ahead of the flat's first use, so far that its gather finds it done, and that the host never waits for the
// use between two updates.
int Builder::carried_place(int first_use) const {
  const int prefetch = spec_.strategy.prefetch;
  const int ahead = prefetch == 0 ? 0 : std::max(std::min(prefetch, first_use) + 1, offload().staged);
  return std::max(first_use - ahead, 0);
}

// Of those at one place what the host updates comes first: the device's own then run beside it.
void Builder::lay_out_updates() {
  const int end = slots_.count();
  IdVector<int> first_use(layout_.flats().size(), end), last_use(layout_.flats().size());
  for (int position = 0; position < end; ++position) {
    for (const FlatId flat : layout_.flats_used_by(slots_[position].use.unit)) {
      first_use[flat] = std::min(first_use[flat], position);
      last_use[flat] = position;
    }
  }
  for (FlatId flat = 0; flat < layout_.flats().count(); ++flat) {
    if (!trains(flat)) continue;
    int behind = end;
    if (updates_early() && !shared(flat)) {
      behind = last_use[flat];
      // On the compute lane, which goes on with the next use while the gradient is reduced.
      if (!host_updates(flat) && spec_.strategy.prefetch > 0) behind = std::min(behind + 1, end - 1);
    }
    if (carries(flat)) behind = carried_place(first_use[flat]);
    carried_ += carries(flat) ? 1 : 0;
    updates_.push_back({flat, behind});
  }
  std::ranges::sort(updates_, {}, [&](const Update& update) {
    return std::tuple(update.behind, !host_updates(update.flat), update.flat);
  });
}

InstructionId Builder::add(Instruction instruction) {
  if (instruction.when < 0) instruction.when = when_;
  const InstructionId id = next_id();
  for (const Operand& operand : instruction.operands) touch(operand.buffer, id);
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
  const int last = slots_.count() - 1;
  int until = std::min(position + 1, last);
  if (slots_[until].use.pass == Pass::recompute) until = std::min(until + 1, last);
  pending_ends_.push_back({id, instruction, until});
}

void Builder::close_lifetimes() {
  for (const PendingEnd& pending : pending_ends_) {
    const int position = pending.position;
    InstructionId use = slots_[position].instruction;
    if (pending.behind_all)
      use = (position + 1 < slots_.count() ? slots_[position + 1].begin : end_begin_) - 1;
    // Found by where it began, as the buffer may have begun again since: then it ends before that.
    std::vector<Lifetime>& lifetimes = buffer(pending.buffer).lifetimes;
    const auto next = std::ranges::upper_bound(lifetimes, pending.at_least, {}, &Lifetime::first);
    if (next == lifetimes.begin()) continue;
    Lifetime& lifetime = *std::prev(next);
    if (lifetime.last != pending.at_least) continue;
    const InstructionId most = next != lifetimes.end() ? next->first - 1 : use;
    lifetime.last = std::max(lifetime.last, std::min(use, most));
  }
}

int Builder::channel(Lane lane, Axis axis) {
  const Channel wanted{axis, lane};
  const auto found = std::find(program_.channels.begin(), program_.channels.end(), wanted);
  if (found != program_.channels.end()) return static_cast<int>(found - program_.channels.begin());
  program_.channels.push_back(wanted);
  return program_.channels.count() - 1;
}

Instruction Builder::about(Opcode op, Lane lane, FlatId flat) const {
  return {.op = op, .lane = lane, .unit = layout_.flat(flat).unit, .operands = {}, .waits = {}};
}

Operand Builder::whole(Role role, BufferId id, Access access) const {
  return {.role = role, .buffer = id, .region = {}, .type = buffer(id).type, .access = access};
}

Operand Builder::part(Role role, BufferId id, const Spread& spread, Access access) const {
  return {.role = role,
          .buffer = id,
          .region = Region::part_of(spread),
          .type = buffer(id).type,
          .access = access};
}

void Builder::issue_use(int position) {
  Slot& slot = slots_[position];
  slot.instruction = next_id() - 1;  // lifetimes that end with the use end there
  if (rests_in(slot.microbatch)) return;
  const bool writes_gradients = slot.use.pass == gradient_pass(slot.use.unit);
  if (writes_gradients) begin_gradients(position);
  const std::vector<GraphStep>& steps = graph_steps_[slot.use.unit][slot.use.pass];
  const std::size_t hands_on = hands_on_at(position);
  for (std::size_t k = static_cast<std::size_t>(slot.exchanged_ahead); k < steps.size(); ++k) {
    if (steps[k].value != kNoValue) {
      exchange(slot, steps[k].value);
    } else {
      Instruction use = part_of_use(slot, steps[k].part);
      access_parameters(slot.use, use);
      if (writes_gradients) access_gradients(use, position);
      access_activations(use);
      slot.instruction = add(std::move(use));
    }
    if (k == hands_on) exchange_ahead(slots_[position + 1]);
  }
}

Instruction Builder::part_of_use(const Slot& slot, int part) const {
  return {.op = Opcode::use,
          .lane = Lane::compute,
          .pass = slot.use.pass,
          .edge = slot.use.edge,
          .unit = slot.use.unit,
          .part = part,
          .microbatch = slot.microbatch,
          .operands = {},
          .waits = {}};
}

void Builder::access_parameters(const Use& of, Instruction& use) {
  for (const FlatId flat : read_by(of))
    use.operands.push_back(part(Role::parameters, flat_buffers_[flat].gathered, kWhole, Access::read));
}

// Whether the use at this position is the first of its microbatch that writes the flat's gradient.
bool Builder::first_of_microbatch(FlatId flat, int position) const {
  const std::vector<int>& positions = backward_positions_[flat];
  const auto at = std::ranges::lower_bound(positions, position);
  return at == positions.begin() || slots_[*(at - 1)].microbatch != slots_[position].microbatch;
}

// Gradients begin with the first use that writes them. What none writes takes part in sums: it is zeroed.
void Builder::begin_gradients(int position) {
  for (const FlatId flat : layout_.flats_used_by(slots_[position].use.unit)) {
    if (!trains(flat) || !first_of_microbatch(flat, position)) continue;
    const BufferId gradient = flat_buffers_[flat].gradient;
    begin(gradient, next_id());
    Instruction zero = about(Opcode::zero, Lane::compute, flat);
    zero.microbatch = slots_[position].microbatch;
    const auto of = [&](const Region& region) {
      zero.operands.push_back({.role = Role::to,
                               .buffer = gradient,
                               .region = region,
                               .type = buffer(gradient).type,
                               .access = Access::write});
    };
    if (spec_.zero_gradients) {
      of(Region::part_of(kWhole));
    } else {
      if (!layout_.gaps(flat, 0, layout_.flat(flat).padded_numel).empty()) of(Region::between_parameters());
      for (const ParameterId parameter : layout_.flat(flat).parameters)
        if (!written_[parameter]) of(Region::of_parameter(parameter));
    }
    if (!zero.operands.empty()) add(std::move(zero));
    for (const ParameterId parameter : layout_.flat(flat).parameters)
      holds_gradient_[parameter] = spec_.zero_gradients;
  }
}

// One operand for each of the unit's trainable parameters that the part is for, in their order: it is added
// to what the microbatch's uses before have made, also where the unit has a parameter twice.
void Builder::access_gradients(Instruction& use, int position) {
  const ParameterId first = layout_.first_parameter(use.unit);
  const auto count = layout_.units()[use.unit].parameters.size();
  const PartSpec* const part = has_activations() ? &graph(use.unit).parts[use.part] : nullptr;
  for (ParameterId id = first; id < first + static_cast<ParameterId>(count); ++id) {
    const Place& place = layout_.place(id);
    if (!trains(place.flat)) continue;
    if (part != nullptr && !part->writes_gradient(id - first)) continue;
    const BufferId gradient = flat_buffers_[place.flat].gradient;
    use.operands.push_back({.role = Role::gradient,
                            .buffer = gradient,
                            .region = Region::of_parameter(place.home),
                            .type = buffer(gradient).type,
                            .access = holds_gradient_[place.home] ? Access::add : Access::write});
    // What an opened use writes is there when it is closed: uses inside it may write before.
    if (slots_[position].use.edge != UseEdge::open) holds_gradient_[place.home] = true;
  }
}

Program build_step(const Layout& layout, const Mesh& mesh, const StepSpec& spec, int pipeline_rank,
                   int data_rank) {
  return Builder(layout, mesh, spec, pipeline_rank, data_rank).build();
}

}  // namespace tessera
