#include "src/cli/setup_choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "src/cli/config_keys.h"
#include "tessera/pipeline.h"

namespace tessera::cli {

namespace {

// Shares of states on the device that are tried together with all else.
constexpr int kShares = 16;

class Choices {
 public:
  Choices(const Config& config, const Model& model, TrainerOptions& options)
      : model_(model),
        options_(options),
        strategy_(options.engine.strategy),
        budget_(options.engine.budget),
        allowed_(allowed_choices(config)),
        states_(chooses_states(config)),
        resident_(config.strategy.resident_units == kAuto &&
                  strategy_.placements.parameters == Placement::sharded) {}

  // One after the other, activations while states and units take the least of the device. Where they do not
  // fit beside these, once more beside those that are chosen, or that fit together.
  void make() {
    choose_activations();
    const bool enough = allowed_.empty() || fits();
    choose_states();
    choose_resident();
    const int open =
        static_cast<int>(!allowed_.empty()) + static_cast<int>(states_) + static_cast<int>(resident_);
    if (open < 2) return;
    if (fits() ? enough : !find_together()) return;
    const std::vector<ActivationChoice> fitting = strategy_.unit_activations;
    choose_activations();
    if (!fits()) strategy_.unit_activations = fitting;
    choose_resident();
  }

 private:
  void choose_activations() {
    if (allowed_.empty()) return;
    strategy_.unit_activations = tessera::choose_activations(model_, options_, budget_, allowed_);
  }

  void choose_states() {
    if (states_)
      strategy_.offload.states_on_device = std::max(0.0, choose_states_on_device(model_, options_, budget_));
  }

  void choose_resident() {
    if (!resident_) return;
    const int most = fit_resident_units(model_, options_, budget_);  // −1: none, or none that was tried
    if (most >= 0) strategy_.resident_units = most;
  }

  bool fits() const { return missing_bytes(model_, options_, budget_) == 0; }

  // Takes the first that fits among what needs the least memory, for a few shares. Where none does, all is as
  // it was before, and the result is false.
  bool find_together() {
    const Strategy before = strategy_;
    const int units = static_cast<int>(model_.modules.size());
    const int shares = states_ ? std::min(kShares, units) : 0;
    std::vector<std::vector<ActivationChoice>> activations;
    for (const ActivationChoice& choice : allowed_)
      if (choice.recompute == Recompute::full) activations.emplace_back(model_.modules.size(), choice);
    if (activations.empty()) activations.push_back(strategy_.unit_activations);
    for (int share = 0; share <= shares; ++share)
      for (const std::vector<ActivationChoice>& choices : activations)
        for (const int resident : {0, units}) {
          if (resident > 0 && !resident_) continue;
          if (states_) strategy_.offload.states_on_device = static_cast<double>(share) / shares;
          if (resident_) strategy_.resident_units = resident;
          strategy_.unit_activations = choices;
          if (fits()) return true;
        }
    strategy_ = before;
    return false;
  }

  const Model& model_;
  TrainerOptions& options_;
  Strategy& strategy_;  // theirs
  const MemoryBudget budget_;
  const std::vector<ActivationChoice> allowed_;
  const bool states_, resident_;  // whether they are to be chosen
};

}  // namespace

std::vector<ActivationChoice> allowed_choices(const Config& config) {
  std::vector<ActivationChoice> allowed;
  if (config.strategy.recompute != "auto") return allowed;
  for (const Space kept : {Space::device, Space::host})
    if (config.offload.activations == "auto" || config.offload.activations == name_of(kept))
      for (const ActivationChoice& choice : recompute_choices())
        allowed.push_back({.recompute = choice.recompute, .kept = kept});
  return allowed;
}

bool chooses_states(const Config& config) {
  return config.offload.states_on_device == kAuto && config.offload.states != "device";
}

std::int64_t missing_bytes(const Model& model, const TrainerOptions& options, const MemoryBudget& budget) {
  std::int64_t most = 0;
  for (const TrainerPlan& plan : plan_pipeline(model, options))
    most = std::max(most, budget.missing_bytes(plan.memory));
  return most;
}

void choose_within_budget(const Config& config, const Model& model, TrainerOptions& options) {
  Choices(config, model, options).make();
}

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
  const MemoryBudget& budget = options.engine.budget;
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
IdVector<double> weights_of_units(const Model& model, const TrainerOptions& options, const Open& open,
                                  Space space) {
  const EngineOptions& engine = options.engine;
  const Placements& placements = engine.strategy.placements;
  const Offload& offload = engine.strategy.offload;
  const auto on = [&](Space home) { return space == Space::device || space == home ? 1.0 : 0.0; };
  const auto per_rank = [&](Placement placement) {
    return placement == Placement::sharded ? 1.0 / engine.mesh.shard : 1.0;
  };
  // Where a rank adds up its own microbatches, the sum is whole: the accumulator, or beside it on the device.
  const bool sums_own = engine.strategy.reduce_when(tessera::rounds_of(options)) == ReduceWhen::last;
  const bool beside = sums_own && placements.gradients == Placement::sharded;
  double local_sum = beside && space == Space::device ? 4.0 : 0.0;
  for (int blocks = engine.mesh.replicate; blocks < engine.strategy.blocks && space == Space::device;
       blocks *= 2)
    local_sum += 4.0 / engine.mesh.shard;
  const double moment_bytes =
      engine.optimizer.moments() * static_cast<double>(bytes_of(engine.optimizer.moment_type));
  const double accumulated = sums_own && !beside ? 1.0 : per_rank(placements.optimizer_state);
  const ActivationSpec activations = model.activations(options.batch, target_of(options));
  const int in_flight = std::min(options.microbatches, engine.mesh.pipeline);
  const double waiting = open.activations.empty() ? on(offload.activations) : 1.0;
  IdVector<double> weights;
  const std::vector<UnitSpec> units = model.units();
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    const UnitGraph& of = activations.units[unit];
    const std::int64_t kept =
        of.output_bytes + (open.activations.empty() ? of.bytes(Keep::saved) : 0);  // else made again
    double weight = static_cast<double>(kept) * in_flight * waiting;
    for (const ParameterSpec& parameter : units[unit].parameters) {
      const TensorShares shares(parameter.name, parameter.shape, parameter.cut, engine.mesh.tensor);
      weight +=
          static_cast<double>(shares.numel()) *
          (on(offload.parameters) * per_rank(placements.parameters) *
               static_cast<double>(bytes_of(parameter.dtype)) +
           (parameter.trainable ? 1.0 : 0.0) *
               (local_sum + on(offload.states) * (accumulated * 4.0 + per_rank(placements.optimizer_state) *
                                                                          (4.0 + moment_bytes))));
    }
    weights.push_back(weight);
  }
  return weights;
}

double heaviest_chunk(const IdVector<double>& weights, std::vector<int> cuts) {
  cuts.push_back(weights.count());
  double heaviest = 0;
  int first = 0;
  for (const int end : cuts) {
    double sum = 0;
    for (; first < end; ++first) sum += weights[first];
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
  const std::vector<double> cost = model.forward_flops(options.batch, target_of(options));
  const auto units = static_cast<int>(cost.size());
  const Partition equal(
      units, engine.mesh.pipeline,
      {.schedule = pipeline.schedule, .chunks = pipeline.chunks, .cuts = {}});  // its checks
  const int chunks = engine.mesh.pipeline * pipeline.chunks;
  std::vector<int> best = pipeline.cuts = balanced_cuts(cost, chunks);
  if (engine.budget.device_bytes == 0 && engine.budget.host_bytes == 0) return best;
  std::int64_t least = least_missing_bytes(model, options, open);
  const std::vector<int> cheapest = best;
  for (const Space space : {Space::device, Space::host}) {
    if (space == Space::host && engine.budget.host_bytes == 0) continue;
    const IdVector<double> weights = weights_of_units(model, options, open, space);
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
    const MemoryBudget device = {.device_bytes = options.engine.budget.device_bytes};
    pipeline.gather_once = missing_bytes(model, options, device) == 0;
  }
  return pipeline;
}

}  // namespace tessera::cli
