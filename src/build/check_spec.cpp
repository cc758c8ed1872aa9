// What can be built at all: what of a mesh and a StepSpec goes together.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "src/build/builder.h"

namespace tessera {

void check_strategy(const Mesh& mesh, const Strategy& strategy) {
  strategy.check();
  const Space parameters = strategy.offload.parameters;
  if (mesh.shard == 1 && mesh.replicate > 1 && strategy.state_over_replicas && parameters != Space::device)
    throw UsageError(fmt::format(
        "strategy.parameters_over_replicas is true and strategy.offload.parameters is {}, but mesh.shard is "
        "1: a parameter of one shard stays whole between steps, and its replicas' slices are brought "
        "together on the device; make mesh.shard 2 or more, offload.parameters device, or "
        "parameters_over_replicas and state_over_replicas false",
        name_of(parameters)));
}

namespace {

// Gradients are added in an order that is known, microbatch by microbatch. `needed` says what needs it, and
// `otherwise` what else to do.
void check_ordered_sums(const Strategy& strategy, const std::string& needed, const std::string& otherwise) {
  if (strategy.reduce == ReduceWhen::last)
    throw UsageError(
        fmt::format("{} and strategy.reduce is last: each rank would add up its own microbatches first; use "
                    "each or automatic, or {}",
                    needed, otherwise));
  if (strategy.reduction == Reduction::native)
    throw UsageError(
        fmt::format("{} and strategy.reduction is native, which adds a part of every rank in no order that "
                    "is known; use exact, or {}",
                    needed, otherwise));
}

// What a tree over blocks needs.
void check_blocks(const Mesh& mesh, const StepSpec& spec) {
  const int blocks = spec.strategy.blocks;
  if (blocks < 1 || !std::has_single_bit(static_cast<unsigned>(blocks)))
    throw UsageError(
        fmt::format("strategy.blocks is {}; it must be a power of two, 1 for no blocks", blocks));
  if (blocks == 1 || spec.kind != StepKind::train) return;
  if (blocks % mesh.replicate != 0)
    throw UsageError(fmt::format(
        "strategy.blocks is {} and mesh.replicate {}: each replica has as many blocks, so make the blocks a "
        "multiple of the replicas, which must then be a power of two",
        blocks, mesh.replicate));
  if (const std::int64_t all = rounds_of(spec).microbatches(mesh); all % blocks != 0)
    throw UsageError(
        fmt::format("strategy.blocks is {} and a step has {} microbatches: blocks are of as many each, so "
                    "make the step's microbatches a multiple of {}",
                    blocks, all, blocks));
  check_ordered_sums(spec.strategy, fmt::format("strategy.blocks is {}", blocks), "make the blocks 1");
}

// What one chain of all microbatches, in the order in which they are dealt, needs where some ranks have
// fewer.
void check_rounds(const Mesh& mesh, const StepSpec& spec) {
  const int ranks = rounds_of(spec).ranks(mesh), last = spec.last_round_ranks;
  if (last == 0) return;
  if (last < 0 || last >= ranks)
    throw UsageError(fmt::format("last_round_ranks is {}; with {} {} it must be 1 to {}, or 0 for all", last,
                                 ranks, spec.strategy.blocks > 1 ? "shard ranks" : "data ranks", ranks - 1));
  const std::string uneven =
      fmt::format("{} of {} data ranks have a microbatch in the last round", last, ranks);
  if (mesh.replicate > 1 && spec.strategy.blocks == 1)
    throw UsageError(
        fmt::format("mesh.replicate is {} and {}: each replica adds up its own microbatches first, so the "
                    "sum over replicas would not be that of the microbatches in their order; make "
                    "mesh.replicate 1, strategy.blocks a multiple of it, or the step's microbatches a "
                    "multiple of {}",
                    mesh.replicate, uneven, ranks));
  check_ordered_sums(spec.strategy, uneven,
                     fmt::format("make the step's microbatches a multiple of {}", ranks));
}

// Each parameter has one part of backward that writes its gradient.
void check_gradients(const UnitSpec& unit, const UnitGraph& graph) {
  const auto count = static_cast<int>(unit.parameters.size());
  for (const PartSpec& part : graph.parts)
    for (const int place : part.gradients.value_or(std::vector<int>{}))
      if (place < 0 || place >= count)
        throw UsageError(
            fmt::format("part '{}' of unit '{}' writes the gradient of parameter {}; the unit has {}",
                        part.name, unit.name, place, count));
  for (int place = 0; place < count; ++place) {
    const auto writes = [&](const PartSpec& part) {
      return part.pass == Pass::backward && part.writes_gradient(place);
    };
    const auto writers = std::ranges::count_if(graph.parts, writes);
    const bool named = std::ranges::all_of(
        graph.parts, [&](const PartSpec& part) { return !writes(part) || part.gradients.has_value(); });
    const ParameterSpec& parameter = unit.parameters[static_cast<std::size_t>(place)];
    if (parameter.trainable && (writers == 0 || (writers > 1 && !named)))
      throw UsageError(
          fmt::format("the gradient of '{}' is written by {} parts of unit '{}'; one must write it, or "
                      "several that name it",
                      parameter.name, writers, unit.name));
  }
}

void check_kind(const UnitSpec& unit, const StepSpec& spec, const UnitGraph& graph) {
  if (graph.forward_only && spec.kind != StepKind::evaluate)
    throw UsageError(
        fmt::format("unit '{}' is forward_only, and the step is of kind {}; it runs in evaluations",
                    unit.name, name_of(spec.kind)));
  const auto cached = std::ranges::find(graph.values, Keep::cached, &ValueSpec::keep);
  if (cached != graph.values.end() && spec.microbatches > 1)
    throw UsageError(fmt::format("value '{}' of unit '{}' is {}, which takes one microbatch; the step has {}",
                                 cached->name, unit.name, name_of(Keep::cached), spec.microbatches));
}

// What is made again in place of being kept is something that would be kept.
void check_again(const UnitSpec& unit, const StepSpec& spec, UnitId id) {
  const ActivationChoice& choice = spec.strategy.unit_activations[id];
  if (choice.again.empty() || spec.kind == StepKind::evaluate) return;
  if (spec.activations.units.empty())
    throw UsageError(fmt::format(
        "strategy.unit_activations: `again` of unit '{}' names values, but activations declare none",
        unit.name));
  const UnitGraph& graph = spec.activations.units[id];
  for (const ValueId value : choice.again)
    if (value < 0 || value >= graph.values.count() || graph.values[value].keep == Keep::pass)
      throw UsageError(
          fmt::format("strategy.unit_activations: `again` of unit '{}' names value {}, which is none that it "
                      "keeps from forward "
                      "to backward",
                      unit.name, value));
}

}  // namespace

void check_spec(const Layout& layout, const Mesh& mesh, const StepSpec& spec) {
  mesh.world();  // its checks
  check_strategy(mesh, spec.strategy);
  if (layout.shards() != mesh.shard)
    throw UsageError(fmt::format("layout has {} shards, but the mesh's shard axis has {} ranks",
                                 layout.shards(), mesh.shard));
  if (layout.replicas() != mesh.replicate)
    throw UsageError(fmt::format("layout has {} replicas, but the mesh's replicate axis has {} ranks",
                                 layout.replicas(), mesh.replicate));
  if (layout.tensor() != mesh.tensor)
    throw UsageError(fmt::format("layout is of {} tensor ranks, but the mesh's tensor axis has {} ranks",
                                 layout.tensor(), mesh.tensor));
  if (mesh.pipeline > 1 && !spec.order.empty())
    throw UsageError(
        "order is given, but mesh.pipeline is above 1: there the schedule orders the uses; leave it empty");
  if (spec.microbatches < 1)
    throw UsageError(fmt::format("microbatches is {}; it must be at least 1", spec.microbatches));
  check_blocks(mesh, spec);
  check_rounds(mesh, spec);
  if (spec.moments < 0 || spec.moments > 2)
    throw UsageError(fmt::format("moments is {}; it must be 0 to 2", spec.moments));
  if (spec.moment_type != DType::fp32 && spec.moment_type != DType::bf16)
    throw UsageError(fmt::format("moment_type is {}; it must be fp32 or bf16", name_of(spec.moment_type)));
  const std::size_t units = spec.activations.units.size();
  if (units != 0 && units != layout.units().size())
    throw UsageError(
        fmt::format("activations are given for {} units; the model has {}", units, layout.units().size()));
  for (UnitId unit = 0; unit < spec.activations.units.count(); ++unit) {
    spec.activations.units[unit].check(layout.units()[unit].name, mesh.tensor);
    check_kind(layout.units()[unit], spec, spec.activations.units[unit]);
    if (!spec.activations.units[unit].forward_only)
      check_gradients(layout.units()[unit], spec.activations.units[unit]);
  }
  if (spec.activations.batch_bytes < 0)
    throw UsageError(fmt::format("activations.batch_bytes is {}", spec.activations.batch_bytes));
  const std::size_t choices = spec.strategy.unit_activations.size();
  if (choices != 0 && choices != layout.units().size())
    throw UsageError(fmt::format("strategy.unit_activations is given for {} units; the model has {}", choices,
                                 layout.units().size()));
  for (UnitId unit = 0; unit < static_cast<UnitId>(choices); ++unit)
    check_again(layout.units()[unit], spec, unit);
  if (units != 0 && !spec.order.empty() && spec.order != default_order(static_cast<int>(units), spec))
    throw UsageError(
        "activations flow along the default order; a trainer with an order of its own keeps its own "
        "activations");
}

}  // namespace tessera
