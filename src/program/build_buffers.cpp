#include <fmt/format.h>

#include <algorithm>

#include "src/program/builder.h"

namespace tessera {
namespace {

std::string flat_name(const Layout& layout, FlatId id) {
  const Flat& flat = layout.flat(id);
  return fmt::format("{}.{}{}", layout.units()[static_cast<std::size_t>(flat.unit)].name, name_of(flat.dtype),
                     flat.trainable ? "" : ".frozen");
}

}  // namespace

BufferId Builder::add_buffer(Buffer buffer) {
  program_.buffers.push_back(std::move(buffer));
  return static_cast<BufferId>(program_.buffers.size()) - 1;
}

void Builder::add_flat_buffers(FlatId id) {
  const Flat& flat = layout_.flat(id);
  const std::string name = flat_name(layout_, id);
  const auto numel = [&](bool sharded) { return sharded ? flat.shard_numel : flat.padded_numel; };
  const auto make = [&](std::string_view what, BufferRole role, Category category, std::int64_t bytes,
                        bool persistent, int index = 0) {
    return add_buffer(
        {.name = fmt::format("{}.{}", name, what),
         .role = role,
         .category = category,
         .unit = flat.unit,
         .flat = id,
         .index = index,
         .bytes = bytes,
         .persistent = persistent,
         .one_address = role == BufferRole::gathered,  // users may remember where parameters lie
         .lifetimes = {}});
  };
  FlatBuffers& buffers = program_.flat_buffers[static_cast<std::size_t>(id)];
  const std::int64_t element = bytes_of(flat.dtype);
  buffers.parameter = make(
      "parameter", BufferRole::parameter, Category::parameters,
      (program_.parameters_over_replicas ? flat.slice_numel : numel(parameters_sharded())) * element, true);
  if (program_.parameters_over_replicas)
    buffers.secondary = make("secondary", BufferRole::secondary, Category::gathered_parameters,
                             flat.shard_numel * element, false);
  buffers.gathered = !parameters_sharded()
                         ? buffers.parameter
                         : make("gathered", BufferRole::gathered, Category::gathered_parameters,
                                flat.padded_numel * element, false);
  if (!flat.trainable) return;

  // State exists between steps, so every program knows it; gradients stay out of all but training.
  const std::int64_t state_bytes =
      (program_.state_over_replicas ? flat.slice_numel : numel(state_sharded())) * 4;
  buffers.master = flat.dtype == DType::fp32
                       ? buffers.parameter
                       : make("master", BufferRole::master, Category::optimizer_state, state_bytes, true);
  for (int k = 0; k < spec_.moments; ++k)
    buffers.moments[static_cast<std::size_t>(k)] = make(fmt::format("moment{}", k + 1), BufferRole::moment,
                                                        Category::optimizer_state, state_bytes, true, k);
  if (!train()) return;
  buffers.reduced = buffers.gradient =
      make("gradient", BufferRole::gradient, Category::gradients, flat.padded_numel * element, false);
  if (nothing_to_add(id)) return;
  buffers.reduced = buffers.accumulator =
      make("accumulator", BufferRole::accumulator, Category::gradients, numel(gradients_sharded()) * 4, true);
  if (reduce_when_ == ReduceWhen::last)
    buffers.local_sum = !gradients_sharded() ? buffers.accumulator
                                             : make("local_sum", BufferRole::local_sum, Category::gradients,
                                                    flat.padded_numel * 4, false);
  if (shared(id) && holders(id).back() != pipeline_rank_)
    buffers.tied_sum =
        make("tied_sum", BufferRole::tied_sum, Category::communication, flat.slice_numel * 4, false);
}

bool Builder::reads_batch(UnitId unit) const {
  return spec_.activations.units.empty() ||
         spec_.activations.units[static_cast<std::size_t>(unit)].reads_batch;
}

// A buffer for each microbatch; compact() leaves as many as are needed at a time.
PerMicrobatch Builder::add_per_microbatch(const Buffer& like) {
  PerMicrobatch made;
  if (like.bytes == 0) return made;
  for (int microbatch = 0; microbatch < spec_.microbatches; ++microbatch)
    made.buffers.push_back(add_buffer(like));
  return made;
}

void Builder::add_unit_buffers(UnitId unit) {
  if (spec_.activations.units.empty()) return;
  const UnitActivations& needs = spec_.activations.units[static_cast<std::size_t>(unit)];
  const auto describe = [&](std::string_view what, BufferRole role, Category category, std::int64_t bytes) {
    // Programs of other shapes have other buffers, which need not lie at the same address.
    return Buffer{
        .name = fmt::format("{}.{}[{}]", program_.units[static_cast<std::size_t>(unit)], what, bytes),
        .role = role,
        .category = category,
        .unit = unit,
        .bytes = bytes,
        .lifetimes = {}};
  };
  UnitBuffers& buffers = program_.unit_buffers[static_cast<std::size_t>(unit)];
  // Its neighbour's rank has the output, too: the last unit's is nobody's input, and no gradient of it comes
  // back.
  const bool handed_on = unit + 1 < static_cast<UnitId>(program_.units.size());
  if (mine(unit) || (handed_on && mine(unit + 1))) {
    buffers.output =
        add_per_microbatch(describe("output", BufferRole::output, Category::activations, needs.output_bytes));
  }
  if (mine(unit)) {
    buffers.saved =
        add_per_microbatch(describe("saved", BufferRole::saved, Category::activations, needs.saved_bytes));
    if (needs.workspace_bytes > 0)
      buffers.workspace = add_buffer(
          describe("workspace", BufferRole::workspace, Category::workspace, needs.workspace_bytes));
  }
  if (train() && handed_on && (mine(unit) || mine(unit + 1)))
    buffers.output_gradient = add_per_microbatch(
        describe("output_gradient", BufferRole::output_gradient, Category::activations, needs.output_bytes));
}

void Builder::add_scalars() {
  program_.scalars_numel = parameter_square_sum_slot(static_cast<int>(layout_.flats().size()),
                                                     spec_.parameter_norms ? layout_.parameters() : 0);
  program_.scalars = add_buffer({.name = "scalars",
                                 .role = BufferRole::scalars,
                                 .category = Category::communication,
                                 .bytes = std::int64_t{8} * program_.scalars_numel * mesh_.world(),
                                 .persistent = true,
                                 .lifetimes = {}});
  bool needed = false;
  for (UnitId unit = 0; unit < static_cast<UnitId>(program_.units.size()); ++unit)
    needed |= mine(unit) && reads_batch(unit);
  if (!needed) return;
  program_.batch = add_per_microbatch({.name = fmt::format("batch[{}]", spec_.activations.batch_bytes),
                                       .role = BufferRole::batch,
                                       .category = Category::activations,
                                       .bytes = spec_.activations.batch_bytes,
                                       .lifetimes = {}});
}

namespace {

// The least count of buffers among which microbatches can take turns without two meeting.
std::size_t buffers_needed(const std::vector<Buffer>& buffers, const PerMicrobatch& all) {
  for (std::size_t count = 1; count < all.buffers.size(); ++count) {
    bool apart = true;
    for (std::size_t turn = 0; turn < count && apart; ++turn) {
      std::vector<Lifetime> lifetimes;
      for (std::size_t k = turn; k < all.buffers.size(); k += count)
        lifetimes.insert(lifetimes.end(), buffers[static_cast<std::size_t>(all.buffers[k])].lifetimes.begin(),
                         buffers[static_cast<std::size_t>(all.buffers[k])].lifetimes.end());
      // In the order of their microbatches: so they will lie in the buffer.
      for (std::size_t k = 1; k < lifetimes.size(); ++k) apart &= lifetimes[k - 1].last < lifetimes[k].first;
    }
    if (apart) return count;
  }
  return all.buffers.size();
}

void rename(std::vector<BufferId>& list, const std::vector<BufferId>& names) {
  for (BufferId& id : list) id = names[static_cast<std::size_t>(id)];
  std::ranges::sort(list);
}

}  // namespace

// Microbatches that are never there together share a buffer.
void Builder::compact() {
  std::vector<PerMicrobatch*> groups = {&program_.batch};
  for (UnitBuffers& unit : program_.unit_buffers)
    groups.insert(groups.end(), {&unit.output, &unit.output_gradient, &unit.saved});
  std::vector<BufferId> kept(program_.buffers.size());
  for (std::size_t id = 0; id < kept.size(); ++id) kept[id] = static_cast<BufferId>(id);
  for (PerMicrobatch* group : groups) {
    if (group->empty()) continue;
    const std::size_t count = buffers_needed(program_.buffers, *group);
    for (std::size_t k = 0; k < group->buffers.size(); ++k) {
      const BufferId into = group->buffers[k % count];
      kept[static_cast<std::size_t>(group->buffers[k])] = into;
      if (k < count) {
        if (count > 1) buffer(into).name += fmt::format(".{}", k);
        continue;
      }
      const std::vector<Lifetime>& more = buffer(group->buffers[k]).lifetimes;
      buffer(into).lifetimes.insert(buffer(into).lifetimes.end(), more.begin(), more.end());
    }
    group->buffers.resize(count);
  }
  // Closes the gaps among the ids.
  std::vector<Buffer> buffers;
  std::vector<BufferId> names(program_.buffers.size(), -1);
  for (std::size_t id = 0; id < kept.size(); ++id) {
    if (kept[id] != static_cast<BufferId>(id)) continue;
    names[id] = static_cast<BufferId>(buffers.size());
    buffers.push_back(std::move(program_.buffers[id]));
  }
  for (std::size_t id = 0; id < kept.size(); ++id) names[id] = names[static_cast<std::size_t>(kept[id])];
  program_.buffers = std::move(buffers);
  for (PerMicrobatch* group : groups) rename(group->buffers, names);
  const auto renamed = [&](BufferId& id) { id = id < 0 ? id : names[static_cast<std::size_t>(id)]; };
  renamed(program_.scalars);
  for (UnitBuffers& unit : program_.unit_buffers) renamed(unit.workspace);
  for (FlatBuffers& flat : program_.flat_buffers)
    for (BufferId* id : {&flat.parameter, &flat.secondary, &flat.gathered, &flat.gradient, &flat.local_sum,
                         &flat.accumulator, &flat.reduced, &flat.tied_sum, &flat.master, flat.moments.data(),
                         &flat.moments[1]})
      renamed(*id);
  for (Instruction& instruction : program_.instructions) {
    rename(instruction.reads, names);
    rename(instruction.writes, names);
  }
}

}  // namespace tessera
