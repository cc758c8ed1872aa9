#include "src/cli/pipeline_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "src/cli/budget_setup.h"
#include "src/cli/config_keys.h"
#include "tessera/pipeline.h"

namespace tessera::cli {

namespace {

std::vector<int> listed_cuts(const std::string& list) {
  const std::optional<std::vector<int>> cuts = parse_integers(list);
  if (!cuts || cuts->empty() || list.ends_with(','))
    throw UsageError(
        fmt::format("pipeline.cuts is \"{}\"; it must be \"balanced\", \"count\", or units "
                    "separated by commas, such as \"5,9\"",
                    list));
  return *cuts;
}

// What the budget decides later.
struct Open {
  std::span<const ActivationChoice> activations;  // what each unit's are chosen from; empty: nothing
  bool states_on_device = false;
};

// With the choice, for all units, with which the least is missing; as `options` say where nothing is open.
std::int64_t least_missing_bytes(const Model& model, const TrainerOptions& options, const Open& open) {
  const MemoryBudget budget = memory_budget(options.engine);
  std::vector<TrainerOptions> ways = {options};
  if (open.states_on_device) {
    ways.push_back(options);
    ways.back().engine.strategy.offload.states_on_device = 1.0;
  }
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (TrainerOptions& way : ways) {
    if (open.activations.empty()) least = std::min(least, missing_bytes(model, way, budget));
    for (const ActivationChoice& choice : open.activations) {
      way.engine.strategy.unit_activations.assign(model.modules.size(), choice);
      least = std::min(least, missing_bytes(model, way, budget));
    }
  }
  return least;
}

// In what proportion units take memory, near enough to look for cuts: parameters and all that goes with them,
// and what microbatches in flight save; of the host, what may be there. Only a plan says what a rank takes.
std::vector<double> weights_of_units(const Model& model, const TrainerOptions& options, const Open& open,
                                     Space space) {
  const EngineOptions& engine = options.engine;
  const Placements& placements = engine.strategy.placements;
  const Offload& offload = engine.strategy.offload;
  const auto on = [&](Space home) { return space == Space::device || space == home ? 1.0 : 0.0; };
  const auto per_rank = [&](Placement placement) {
    return placement == Placement::sharded ? 1.0 / engine.mesh.shard : 1.0;
  };
  // Where a rank adds up its own microbatches, the sum is whole: the accumulator, or beside it on the device.
  const bool sums_own = engine.strategy.reduce_when(options.microbatches) == ReduceWhen::last;
  const bool beside = sums_own && placements.gradients == Placement::sharded;
  const double local_sum = beside && space == Space::device ? 4.0 : 0.0;
  const double moment_bytes =
      engine.optimizer.moments() * static_cast<double>(bytes_of(engine.optimizer.moment_type));
  const double accumulated = sums_own && !beside ? 1.0 : per_rank(placements.optimizer_state);
  const ActivationSpec activations =
      model.activations(options.batch, Target(engine.threads_per_rank, engine.device));
  const int in_flight = std::min(options.microbatches, engine.mesh.pipeline);
  const double waiting = open.activations.empty() ? on(offload.activations) : 1.0;
  std::vector<double> weights;
  const std::vector<UnitSpec> units = model.units();
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    const UnitActivations& of = activations.units[unit];
    const std::int64_t kept =
        of.output_bytes + (open.activations.empty() ? of.saved_bytes : 0);  // else made again
    double weight = static_cast<double>(kept) * in_flight * waiting;
    for (const ParameterSpec& parameter : units[unit].parameters)
      weight += static_cast<double>(numel_of(parameter.shape)) *
                (on(offload.parameters) * per_rank(placements.parameters) *
                     static_cast<double>(bytes_of(parameter.dtype)) +
                 local_sum +
                 on(offload.states) *
                     (accumulated * 4.0 + per_rank(placements.optimizer_state) * (4.0 + moment_bytes)));
    weights.push_back(weight);
  }
  return weights;
}

double heaviest_chunk(const std::vector<double>& weights, std::vector<int> cuts) {
  cuts.push_back(static_cast<int>(weights.size()));
  double heaviest = 0;
  int first = 0;
  for (const int end : cuts) {
    double sum = 0;
    for (; first < end; ++first) sum += weights[static_cast<std::size_t>(first)];
    heaviest = std::max(heaviest, sum);
  }
  return heaviest;
}

// Cuts by cost; where a rank's plan is beyond the budget, the cheapest whose heaviest chunk is lighter, and
// so on until all fit: by what is on the device, then by what is on the host. Where none do, those with which
// the least is missing: the plan then says it, and what would fit.
std::vector<int> cuts_that_fit(const Model& model, TrainerOptions& options, const Open& open) {
  const EngineOptions& engine = options.engine;
  Pipeline& pipeline = options.engine.strategy.pipeline;
  const std::vector<double> cost =
      model.forward_flops(options.batch, Target(engine.threads_per_rank, engine.device));
  const auto units = static_cast<int>(cost.size());
  const Partition equal(
      units, engine.mesh.pipeline,
      {.schedule = pipeline.schedule, .chunks = pipeline.chunks, .cuts = {}});  // its checks
  const int chunks = engine.mesh.pipeline * pipeline.chunks;
  std::vector<int> best = pipeline.cuts = balanced_cuts(cost, chunks);
  if (engine.device_memory_bytes == 0 && engine.host_memory_bytes == 0) return best;
  std::int64_t least = least_missing_bytes(model, options, open);
  const std::vector<int> cheapest = best;
  for (const Space space : {Space::device, Space::host}) {
    if (space == Space::host && engine.host_memory_bytes == 0) continue;
    const std::vector<double> weights = weights_of_units(model, options, open, space);
    pipeline.cuts = cheapest;
    while (least > 0) {
      const double lighter = heaviest_chunk(weights, pipeline.cuts) * (1 - 1e-9);
      if (lighter > 0) pipeline.cuts = balanced_cuts(cost, chunks, weights, lighter);
      if (lighter == 0 || pipeline.cuts.empty()) break;
      const std::int64_t bytes = least_missing_bytes(model, options, open);
      if (bytes >= least) continue;
      least = bytes;
      best = pipeline.cuts;
    }
  }
  return best;
}

}  // namespace

Pipeline pipeline_of(const Config& config, const Model& model, TrainerOptions options,
                     std::span<const ActivationChoice> among) {
  Pipeline& pipeline = options.engine.strategy.pipeline;
  const PipelineConfig& given = config.pipeline;
  const int ranks = static_cast<int>(config.mesh.pipeline);
  if (ranks == 1) return pipeline;
  pipeline.schedule = pipeline_schedule_named(given.schedule).value_or(pipeline.schedule);
  pipeline.chunks = static_cast<int>(given.chunks);
  pipeline.gather_once = given.gather_once == "true";
  const int units = static_cast<int>(model.modules.size());
  const Partition even(units, ranks, pipeline);  // refuses what no cuts could mend
  if (given.cuts == "balanced")
    pipeline.cuts = cuts_that_fit(model, options, {among, chooses_states(config)});
  else if (given.cuts != "count")
    pipeline.cuts = listed_cuts(given.cuts);
  const Partition checked(units, ranks, pipeline);
  if (given.gather_once == "auto") {
    pipeline.gather_once = true;
    const MemoryBudget device = {.device_bytes = options.engine.device_memory_bytes};
    pipeline.gather_once = missing_bytes(model, options, device) == 0;
  }
  return pipeline;
}

}  // namespace tessera::cli
