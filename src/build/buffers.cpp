#include <fmt/format.h>

#include <algorithm>

#include "src/build/builder.h"

namespace tessera {
namespace {

std::string flat_name(const Layout& layout, FlatId id) {
  const Flat& flat = layout.flat(id);
  const std::string over = flat.over == TensorShare::copied ? "" : fmt::format(".{}", name_of(flat.over));
  return fmt::format("{}.{}{}{}", layout.units()[flat.unit].name, name_of(flat.dtype), over,
                     flat.trainable ? "" : ".frozen");
}

}  // namespace

BufferId Builder::add_buffer(Buffer buffer) {
  program_.buffers.push_back(std::move(buffer));
  return program_.buffers.count() - 1;
}

BufferId Builder::add_flat_buffer(FlatId id, Buffer like, DType type) {
  const Flat& flat = layout_.flat(id);
  like.name = fmt::format("{}.{}", flat_name(layout_, id), like.name);
  like.unit = flat.unit;
  like.flat = id;
  like.type = type;
  like.bytes = numel_of(flat, like.spread) * bytes_of(type);
  return add_buffer(std::move(like));
}

void Builder::add_flat_buffers(FlatId id) {
  const Flat& flat = layout_.flat(id);
  FlatBuffers& buffers = flat_buffers_[id];
  const auto make = [&](Buffer like) { return add_flat_buffer(id, std::move(like), flat.dtype); };
  const Space home = offload().parameters;
  buffers.parameter = buffers.on_device = buffers.on_host = make({.name = "parameter",
                                                                  .role = BufferRole::parameter,
                                                                  .category = Category::parameters,
                                                                  .space = home,
                                                                  .spread = spreads_.parameters,
                                                                  .persistent = true,
                                                                  .lifetimes = {}});
  if (home != Space::device)
    buffers.on_device = make({.name = "uploaded",
                              .role = BufferRole::uploaded,
                              .category = Category::gathered_parameters,
                              .spread = spreads_.parameters,
                              .lifetimes = {}});
  if (home != Space::host)
    buffers.on_host = make({.name = "staged",
                            .role = BufferRole::staged,
                            .category = Category::parameters,
                            .space = Space::host,
                            .spread = home == Space::disk ? spreads_.parameters : spreads_.states,
                            .lifetimes = {}});
  if (parameters_over_replicas())
    buffers.secondary = make({.name = "secondary",
                              .role = BufferRole::secondary,
                              .category = Category::gathered_parameters,
                              .spread = kShard,
                              .lifetimes = {}});
  buffers.gathered = !parameters_come_and_go()
                         ? buffers.parameter
                         : make({.name = "gathered",
                                 .role = BufferRole::gathered,
                                 .category = Category::gathered_parameters,
                                 .one_address = true,  // users may remember where parameters lie
                                 .lifetimes = {}});
  if (!flat.trainable) return;
  add_state_buffers(id);  // state exists between steps, so every program knows it
  if (train()) add_gradient_buffers(id);
}

void Builder::add_state_buffers(FlatId id) {
  FlatBuffers& buffers = flat_buffers_[id];
  const Space space = state_space(id);
  const auto make = [&](std::string_view what, BufferRole role, int index, DType type) {
    return add_flat_buffer(id,
                           {.name = std::string(what),
                            .role = role,
                            .category = Category::optimizer_state,
                            .space = space,
                            .spread = spreads_.states,
                            .index = index,
                            .persistent = true,
                            .lifetimes = {}},
                           type);
  };
  // What the update touches of a state: itself, or a window on the disk's.
  const auto at_update = [&](BufferId state, std::string_view what, int index, DType type) {
    if (space != Space::disk) return state;
    return add_flat_buffer(id,
                           {.name = fmt::format("{}.window", what),
                            .role = BufferRole::state_window,
                            .category = Category::optimizer_state,
                            .space = Space::host,
                            .spread = spreads_.states,
                            .index = index,
                            .lifetimes = {}},
                           type);
  };
  buffers.update.parameter = host_updates(id) ? buffers.on_host : buffers.on_device;
  if (layout_.flat(id).dtype == DType::fp32) {
    buffers.master = buffers.parameter;
    buffers.update.master = buffers.update.parameter;
  } else {
    buffers.master = make("master", BufferRole::master, 0, DType::fp32);
    buffers.update.master = at_update(buffers.master, "master", -1, DType::fp32);
  }
  for (int k = 0; k < spec_.moments; ++k) {
    const std::string name = fmt::format("moment{}", k + 1);
    buffers.moments[k] = make(name, BufferRole::moment, k, spec_.moment_type);
    buffers.update.moments[k] = at_update(buffers.moments[k], name, k, spec_.moment_type);
  }
}

void Builder::add_gradient_buffers(FlatId id) {
  const DType type = layout_.flat(id).dtype;
  FlatBuffers& buffers = flat_buffers_[id];
  const auto gradients = [&](std::string_view name, BufferRole role, const Spread& spread) {
    return Buffer{.name = std::string(name),
                  .role = role,
                  .category = Category::gradients,
                  .spread = spread,
                  .lifetimes = {}};
  };
  buffers.reduced = buffers.gradient =
      add_flat_buffer(id, gradients("gradient", BufferRole::gradient, kWhole), type);
  if (!nothing_to_add(id)) {
    // All of it where local sums lie there, or every rank updates everything.
    const bool sums_here = reduce_when_ == ReduceWhen::last && !gradients_sharded();
    const Spread spread = sums_here || !state_sharded() ? kWhole : kShard;
    buffers.reduced = buffers.accumulator =
        add_flat_buffer(id, gradients("accumulator", BufferRole::accumulator, spread), DType::fp32);
    name_by_bytes(buffers.accumulator);
    const auto waiting = [&](std::string_view name, BufferRole role, int depth, const Spread& cut) {
      Buffer like = gradients(fmt::format("{}.{}", name, depth), role, cut);
      like.index = depth;
      return add_flat_buffer(id, like, DType::fp32);
    };
    for (int depth = 1; 1 << depth <= blocks_here(); ++depth)
      buffers.block_sums.push_back({.device = waiting("block_sum", BufferRole::block_sum, depth, kShard)});
    for (int depth = 0; rounds_.blocks > 1 && mesh_.replicate > 2 && 2 << depth <= mesh_.replicate; ++depth)
      buffers.replica_sums.push_back(waiting("replica_sum", BufferRole::replica_sum, depth, kSlice));
    if (reduce_when_ == ReduceWhen::last)
      buffers.local_sum =
          sums_here ? buffers.accumulator
                    : add_flat_buffer(id, gradients("local_sum", BufferRole::local_sum, kWhole), DType::fp32);
    if (shared(id) && holders(id).back() != pipeline_rank_)
      buffers.tied_sum = add_flat_buffer(id,
                                         {.name = "tied_sum",
                                          .role = BufferRole::tied_sum,
                                          .category = Category::communication,
                                          .spread = kSlice,
                                          .lifetimes = {}},
                                         DType::fp32);
  }
  buffers.update.gradient = buffers.reduced;
  if (!host_updates(id)) return;
  // A sum over microbatches goes on from all that the accumulator had.
  const bool of_sums = buffers.accumulator >= 0 && spec_.microbatches > 1 && reduce_when_ == ReduceWhen::each;
  Buffer down = gradients("host_gradient", BufferRole::host_gradient,
                          of_sums ? buffer(buffers.accumulator).spread : spreads_.states);
  down.space = Space::host;
  down.persistent = carries(id);
  buffers.host_gradient = buffers.update.gradient =
      add_flat_buffer(id, down, buffers.accumulator >= 0 ? DType::fp32 : type);
  name_by_bytes(buffers.host_gradient);
  for (WaitingSum& sum : buffers.block_sums) {
    if (spec_.microbatches == 1) break;  // no sum waits for a round
    down.index = buffer(sum.device).index;
    down.name = fmt::format("host_gradient.{}", down.index);
    down.spread = kShard;
    down.persistent = false;
    sum.host = add_flat_buffer(id, down, DType::fp32);
  }
}

// Programs of other counts of microbatches have other buffers.
void Builder::name_by_bytes(BufferId id) { buffer(id).name += fmt::format("[{}]", buffer(id).bytes); }

bool Builder::reads_batch(UnitId unit) const { return !has_activations() || graph(unit).reads_batch(); }

// A buffer for each microbatch; compact() leaves as many as are needed at a time.
PerMicrobatch Builder::add_per_microbatch(const Buffer& like) {
  PerMicrobatch made;
  if (like.bytes == 0) return made;
  for (int microbatch = 0; microbatch < spec_.microbatches; ++microbatch)
    made.buffers.push_back(add_buffer(like));
  return made;
}

void Builder::add_unit_buffers(UnitId unit) {
  if (!has_activations()) return;
  const UnitGraph& declared = graph(unit);
  const auto describe = [&](std::string_view what, BufferRole role, Category category, std::int64_t bytes) {
    // Programs of other shapes have other buffers, which need not lie at the same address.
    return Buffer{.name = fmt::format("{}.{}[{}]", program_.units[unit].name, what, bytes),
                  .role = role,
                  .category = category,
                  .unit = unit,
                  .bytes = bytes,
                  .lifetimes = {}};
  };
  UnitBuffers& buffers = unit_buffers_[unit];
  // Its neighbour's rank has the output, too: the last unit's is nobody's input, and no gradient of it comes
  // back.
  const bool handed_on = unit + 1 < program_.units.count();
  if (mine(unit) || (handed_on && mine(unit + 1))) {
    buffers.output = add_per_microbatch(
        describe("output", BufferRole::output, Category::activations, declared.output_bytes));
  }
  if (mine(unit)) {
    const auto of_value = [&](ValueId id, std::string_view suffix, BufferRole role) {
      const ValueSpec& value = declared.values[id];
      Buffer made =
          describe(fmt::format("{}{}", value.name, suffix), role, Category::activations, value.bytes);
      made.index = id;
      made.type = value.type;
      return made;
    };
    const auto lasting = [&](ValueId id) {
      Buffer made = of_value(id, "", BufferRole::cache);
      made.category = Category::cache;
      made.persistent = true;
      return add_per_microbatch(made);
    };
    for (ValueId id = 0; id < declared.values.count(); ++id)
      buffers.values.push_back(declared.root(id) != id ? PerMicrobatch{}
                               : declared.values[id].keep == Keep::cached
                                   ? lasting(id)
                                   : add_per_microbatch(of_value(id, "", BufferRole::value)));
    buffers.values_on_host.resize(declared.values.size());
    if (leaves_device(unit)) {
      const auto on_host = [&](Buffer waiting) {
        waiting.space = Space::host;
        return add_per_microbatch(waiting);
      };
      for (ValueId id = 0; id < declared.values.count(); ++id)
        if (declared.values[id].keep == Keep::saved && declared.is_kept(id, choice_of(unit)))
          buffers.values_on_host[id] = on_host(of_value(id, "_on_host", BufferRole::offloaded));
      if (unit > 0) {
        Buffer input = describe("input_on_host", BufferRole::offloaded, Category::activations,
                                graph(unit - 1).output_bytes);
        input.index = SharedValue::input;
        buffers.input_on_host = on_host(std::move(input));
      }
    }
    for (const PartSpec& part : declared.parts)
      if (part.workspace_bytes > 0 && !buffers.workspaces.contains(part.workspace_bytes))
        buffers.workspaces[part.workspace_bytes] = add_buffer(
            describe("workspace", BufferRole::workspace, Category::workspace, part.workspace_bytes));
  }
  if (train() && handed_on && (mine(unit) || mine(unit + 1)))
    buffers.output_gradient = add_per_microbatch(describe("output_gradient", BufferRole::output_gradient,
                                                          Category::activations, declared.output_bytes));
}

void Builder::add_scalars() {
  program_.scalars_numel = square_sum_slot(spec_.parameter_norms ? layout_.parameters() : 0);
  program_.scalars = add_buffer({.name = "scalars",
                                 .role = BufferRole::scalars,
                                 .category = Category::communication,
                                 .bytes = std::int64_t{8} * program_.scalars_numel * mesh_.world(),
                                 .persistent = true,
                                 .lifetimes = {}});
}

// What updates, and what belongs to them, depend on.
void Builder::add_decisions() {
  if (!train()) return;
  const auto make = [&](std::string_view name, BufferRole role) {
    return add_buffer({.name = std::string(name),
                       .role = role,
                       .category = Category::communication,
                       .bytes = kDecisionBytes,
                       .persistent = true,
                       .lifetimes = {}});
  };
  decision_ = make("decision", BufferRole::decision);
  if (updates_early()) terms_ = make("terms", BufferRole::terms);
  bool any_carried = false;  // by any pipeline rank: all decide alike
  for (FlatId flat = 0; flat < layout_.flats().count(); ++flat)
    any_carried |= layout_.flat(flat).trainable && carries(flat);
  if (any_carried) previous_ = make("previous_decision", BufferRole::previous_decision);
}

void Builder::add_batch() {
  bool needed = false;
  for (UnitId unit = 0; unit < program_.units.count(); ++unit) needed |= mine(unit) && reads_batch(unit);
  if (!needed) return;
  batch_ = add_per_microbatch({.name = fmt::format("batch[{}]", spec_.activations.batch_bytes),
                               .role = BufferRole::batch,
                               .category = Category::activations,
                               .bytes = spec_.activations.batch_bytes,
                               .lifetimes = {}});
}

namespace {

// Whether every `count`-th microbatch from `turn` on can have the same buffer, in their order.
bool can_share(const IdVector<Buffer>& buffers, const PerMicrobatch& all, std::size_t turn,
               std::size_t count) {
  InstructionId over = -1;
  for (std::size_t k = turn; k < all.buffers.size(); k += count)
    for (const Lifetime& life : buffers[all.buffers[k]].lifetimes) {
      if (life.first <= over) return false;
      over = life.last;
    }
  return true;
}

// The least count of buffers among which microbatches can take turns without two meeting.
std::size_t buffers_needed(const IdVector<Buffer>& buffers, const PerMicrobatch& all) {
  std::size_t count = 1;
  const auto apart = [&] {
    for (std::size_t turn = 0; turn < count; ++turn)
      if (!can_share(buffers, all, turn, count)) return false;
    return true;
  };
  while (count < all.buffers.size() && !apart()) ++count;
  return count;
}

}  // namespace

// Microbatches that are never there together share a buffer.
void Builder::compact() {
  std::vector<PerMicrobatch*> groups = {&batch_};
  for (UnitBuffers& unit : unit_buffers_) {
    groups.insert(groups.end(), {&unit.output, &unit.output_gradient, &unit.input_on_host});
    for (PerMicrobatch& value : unit.values) groups.push_back(&value);
    for (PerMicrobatch& value : unit.values_on_host) groups.push_back(&value);
  }
  IdVector<BufferId> kept(program_.buffers.size());
  for (BufferId id = 0; id < kept.count(); ++id) kept[id] = id;
  for (PerMicrobatch* group : groups) {
    if (group->empty()) continue;
    const std::size_t count = buffers_needed(program_.buffers, *group);
    for (std::size_t k = 0; k < group->buffers.size(); ++k) {
      const BufferId into = group->buffers[k % count];
      kept[group->buffers[k]] = into;
      if (k < count) {
        if (count > 1) buffer(into).name += fmt::format(".{}", k);
        continue;
      }
      const std::vector<Lifetime>& more = buffer(group->buffers[k]).lifetimes;
      buffer(into).lifetimes.insert(buffer(into).lifetimes.end(), more.begin(), more.end());
    }
  }
  rename(kept);
}

// Keeps the buffers that stand for themselves in `kept`, closes the gaps among the ids, and gives those of
// others the ids of what stands for them.
void Builder::rename(const IdVector<BufferId>& kept) {
  IdVector<Buffer> buffers;
  IdVector<BufferId> names(program_.buffers.size(), -1);
  for (BufferId id = 0; id < kept.count(); ++id) {
    if (kept[id] != id) continue;
    names[id] = buffers.count();
    buffers.push_back(std::move(program_.buffers[id]));
  }
  for (BufferId id = 0; id < kept.count(); ++id)
    if (kept[id] >= 0) names[id] = names[kept[id]];
  program_.buffers = std::move(buffers);
  const auto renamed = [&](BufferId& id) { id = id < 0 ? id : names[id]; };
  renamed(program_.scalars);
  for (Instruction& instruction : program_.instructions) {
    renamed(instruction.when);
    for (Operand& operand : instruction.operands) renamed(operand.buffer);
  }
}

// Drops the buffers that no instruction touches and that do not persist.
void Builder::forget_unused() {
  IdVector<BufferId> kept(program_.buffers.size());
  for (BufferId id = 0; id < kept.count(); ++id)
    kept[id] = buffer(id).persistent || !buffer(id).lifetimes.empty() ? id : -1;
  rename(kept);
}

}  // namespace tessera
