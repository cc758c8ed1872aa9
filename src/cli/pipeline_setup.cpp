#include "src/cli/pipeline_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

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

std::int64_t fullest_bytes(const Model& model, const TrainerOptions& options) {
  const std::vector<TrainerPlan> plans = plan_pipeline(model, options);
  return plans[static_cast<std::size_t>(fullest_pipeline_rank(plans))]
      .memory.space(Space::device)
      .arena_bytes;
}

// With the choice, for all units, that takes the least; as `options` say where there is none.
std::int64_t fullest_bytes(const Model& model, TrainerOptions options,
                           std::span<const ActivationChoice> among) {
  if (among.empty()) return fullest_bytes(model, options);
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const ActivationChoice& choice : among) {
    options.engine.strategy.unit_activations.assign(model.modules.size(), choice);
    least = std::min(least, fullest_bytes(model, options));
  }
  return least;
}

// In what proportion units take memory, near enough to look for cuts: parameters and all that goes with them,
// and what microbatches in flight save. Only a plan says what a rank takes.
std::vector<double> weights_of_units(const Model& model, const TrainerOptions& options,
                                     std::span<const ActivationChoice> among) {
  const EngineOptions& engine = options.engine;
  const Placements& placements = engine.strategy.placements;
  const auto per_rank = [&](Placement placement) {
    return placement == Placement::sharded ? 1.0 / engine.mesh.shard : 1.0;
  };
  const ActivationSpec activations =
      model.activations(options.batch, Target(engine.threads_per_rank, engine.device));
  const int in_flight = std::min(options.microbatches, engine.mesh.pipeline);
  std::vector<double> weights;
  const std::vector<UnitSpec> units = model.units();
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    const UnitActivations& of = activations.units[unit];
    const std::int64_t kept = of.output_bytes + (among.empty() ? of.saved_bytes : 0);  // else made again
    double weight = static_cast<double>(kept) * in_flight;
    for (const ParameterSpec& parameter : units[unit].parameters)
      weight += static_cast<double>(numel_of(parameter.shape)) *
                (per_rank(placements.parameters) * static_cast<double>(bytes_of(parameter.dtype)) +
                 per_rank(placements.gradients) * 4.0 +
                 per_rank(placements.optimizer_state) * 4.0 * (1 + engine.optimizer.moments()));
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
// so on until all fit. Where none do, those that take least: the plan then says what is missing, and what
// would fit.
std::vector<int> cuts_that_fit(const Model& model, TrainerOptions& options,
                               std::span<const ActivationChoice> among) {
  const EngineOptions& engine = options.engine;
  Pipeline& pipeline = options.engine.strategy.pipeline;
  const std::vector<double> cost =
      model.forward_flops(options.batch, Target(engine.threads_per_rank, engine.device));
  const auto units = static_cast<int>(cost.size());
  const Partition equal(
      units, engine.mesh.pipeline,
      {.schedule = pipeline.schedule, .chunks = pipeline.chunks, .cuts = {}});  // its checks
  const int chunks = engine.mesh.pipeline * pipeline.chunks;
  pipeline.cuts = balanced_cuts(cost, chunks);
  const std::int64_t budget = engine.device_memory_bytes;
  if (budget == 0) return pipeline.cuts;
  const std::vector<double> weights = weights_of_units(model, options, among);
  std::int64_t least = fullest_bytes(model, options, among);
  std::vector<int> best = pipeline.cuts;
  while (least > budget) {
    const double lighter = heaviest_chunk(weights, pipeline.cuts) * (1 - 1e-9);
    pipeline.cuts = balanced_cuts(cost, chunks, weights, lighter);
    if (pipeline.cuts.empty()) break;
    const std::int64_t bytes = fullest_bytes(model, options, among);
    if (bytes >= least) continue;
    least = bytes;
    best = pipeline.cuts;
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
  for (const ScheduleRow& row : pipeline_schedules())
    if (row.name == given.schedule) pipeline.schedule = row.schedule;
  pipeline.chunks = static_cast<int>(given.chunks);
  pipeline.gather_once = given.gather_once == "true";
  const int units = static_cast<int>(model.modules.size());
  const Partition even(units, ranks, pipeline);  // refuses what no cuts could mend
  if (given.cuts == "balanced")
    pipeline.cuts = cuts_that_fit(model, options, among);
  else if (given.cuts != "count")
    pipeline.cuts = listed_cuts(given.cuts);
  const Partition checked(units, ranks, pipeline);
  if (given.gather_once == "auto") {
    pipeline.gather_once = true;
    const std::int64_t budget = options.engine.device_memory_bytes;
    pipeline.gather_once = budget == 0 || fullest_bytes(model, options) <= budget;
  }
  return pipeline;
}

}  // namespace tessera::cli
