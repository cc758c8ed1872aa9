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
  buffers.parameter = make("parameter", BufferRole::parameter, Category::parameters,
                           numel(parameters_sharded()) * element, true);
  buffers.gathered = !parameters_sharded()
                         ? buffers.parameter
                         : make("gathered", BufferRole::gathered, Category::gathered_parameters,
                                flat.padded_numel * element, false);
  if (!flat.trainable) return;

  // State exists between steps, so every program knows it; gradients stay out of all but training.
  const std::int64_t state_bytes = numel(state_sharded()) * 4;
  buffers.master = flat.dtype == DType::fp32
                       ? buffers.parameter
                       : make("master", BufferRole::master, Category::optimizer_state, state_bytes, true);
  for (int k = 0; k < spec_.moments; ++k)
    buffers.moments[static_cast<std::size_t>(k)] = make(fmt::format("moment{}", k + 1), BufferRole::moment,
                                                        Category::optimizer_state, state_bytes, true, k);
  if (!train()) return;
  buffers.reduced = buffers.gradient =
      make("gradient", BufferRole::gradient, Category::gradients, flat.padded_numel * element, false);
  if (nothing_to_add()) return;
  buffers.reduced = buffers.accumulator =
      make("accumulator", BufferRole::accumulator, Category::gradients, numel(gradients_sharded()) * 4, true);
  if (reduce_when_ == ReduceWhen::last)
    buffers.local_sum = !gradients_sharded() ? buffers.accumulator
                                             : make("local_sum", BufferRole::local_sum, Category::gradients,
                                                    flat.padded_numel * 4, false);
}

void Builder::add_unit_buffers(UnitId unit) {
  if (spec_.activations.units.empty()) return;
  const UnitActivations& needs = spec_.activations.units[static_cast<std::size_t>(unit)];
  const auto make = [&](std::string_view what, BufferRole role, Category category, std::int64_t bytes) {
    if (bytes == 0) return BufferId{-1};
    // Programs of other shapes have other buffers, which need not lie at the same address.
    return add_buffer(
        {.name = fmt::format("{}.{}[{}]", program_.units[static_cast<std::size_t>(unit)], what, bytes),
         .role = role,
         .category = category,
         .unit = unit,
         .bytes = bytes,
         .lifetimes = {}});
  };
  UnitBuffers& buffers = program_.unit_buffers[static_cast<std::size_t>(unit)];
  buffers.output = make("output", BufferRole::output, Category::activations, needs.output_bytes);
  buffers.saved = make("saved", BufferRole::saved, Category::activations, needs.saved_bytes);
  buffers.workspace = make("workspace", BufferRole::workspace, Category::workspace, needs.workspace_bytes);
  // The last unit's output is nobody's input, so no gradient of it comes back.
  if (train() && unit + 1 < static_cast<UnitId>(program_.units.size()))
    buffers.output_gradient =
        make("output_gradient", BufferRole::output_gradient, Category::activations, needs.output_bytes);
}

void Builder::add_scalars() {
  program_.scalars_numel = parameter_square_sum_slot(static_cast<int>(layout_.flats().size()),
                                                     spec_.parameter_norms ? layout_.parameters() : 0);
  program_.scalars = add_buffer({.name = "scalars",
                                 .role = BufferRole::scalars,
                                 .category = Category::communication,
                                 .bytes = 8LL * program_.scalars_numel * layout_.shards(),
                                 .persistent = true,
                                 .lifetimes = {}});
  if (spec_.activations.batch_bytes > 0)
    program_.batch = add_buffer({.name = fmt::format("batch[{}]", spec_.activations.batch_bytes),
                                 .role = BufferRole::batch,
                                 .category = Category::activations,
                                 .bytes = spec_.activations.batch_bytes,
                                 .lifetimes = {}});
}

}  // namespace tessera
