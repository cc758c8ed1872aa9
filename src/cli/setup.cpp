#include "src/cli/setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>

#include "src/cli/setup_check.h"
#include "src/cli/setup_choices.h"
#include "tessera/budget.h"
#include "tessera/fine_tuning.h"
#include "tessera/hugging_face.h"

namespace tessera::cli {

namespace {

Model make_model(const Gpt2Config& dimensions, DType type) { return make_gpt2(dimensions, type); }
Model make_model(const LlamaConfig& dimensions, DType type) { return make_llama(dimensions, type); }

Space space_of(const std::string& name) {
  return name == "disk" ? Space::disk : name == "host" ? Space::host : Space::device;
}

Offload offload_of(const OffloadConfig& config) {
  return {.states = space_of(config.states),
          .states_on_device = config.states_on_device == kAuto ? 0.0 : config.states_on_device,
          .parameters = space_of(config.parameters),
          .staged = static_cast<int>(config.staged),
          .activations = space_of(config.activations)};
}

Strategy strategy_of(const StrategyConfig& config) {
  Strategy strategy;
  strategy.placements = Placements::of_stage(static_cast<int>(config.stage));
  strategy.reduce = config.reduce == "each"   ? ReduceWhen::each
                    : config.reduce == "last" ? ReduceWhen::last
                                              : ReduceWhen::automatic;
  strategy.reduction = config.reduction == name_of(Reduction::native) ? Reduction::native : Reduction::exact;
  for (const UpdateWhen update : {UpdateWhen::decided, UpdateWhen::reduced, UpdateWhen::next})
    if (config.update == name_of(update)) strategy.update = update;
  strategy.prefetch = static_cast<int>(config.prefetch);
  for (const ActivationChoice& choice : recompute_choices())
    if (config.recompute == name_of(choice.recompute)) strategy.recompute = choice.recompute;
  strategy.resident_units = config.resident_units == kAuto ? 0 : static_cast<int>(config.resident_units);
  strategy.state_over_replicas = config.state_over_replicas;
  strategy.parameters_over_replicas = config.parameters_over_replicas;
  return strategy;
}

// One group for each of the model's: the name says whether its parameters decay.
Optimizer optimizer_of(const Config& config, const Model& model) {
  Optimizer optimizer{.options = config.optimizer.chosen(),
                      .groups = {},
                      .moment_type = parse_dtype(config.precision.moments)};
  for (const std::string& name : model.groups) {
    ParameterGroup group{.name = name};
    if (name == "no_decay") group.weight_decay = 0.0;
    group.learning_rate_factor = model.rate_factors[optimizer.groups.size()];
    optimizer.groups.push_back(std::move(group));
  }
  return optimizer;
}

LearningRateSchedule schedule_of(const Config& config, std::int64_t sequences_per_step) {
  const ScheduleConfig& c = config.schedule;
  // A run of no steps has no schedule.
  const std::string kind = only_evaluates(config) ? "constant" : c.kind;
  LearningRateSchedule schedule{.decay = parse_learning_rate_decay(kind),
                                .peak = c.learning_rate,
                                .warmup_steps = c.warmup_steps,
                                .total_steps = c.total_steps > 0 ? c.total_steps : config.run.steps,
                                .decay_steps = c.decay_steps,
                                .final_factor = c.final_factor};
  if (c.base_batch > 0)
    schedule.peak =
        scale_learning_rate(c.learning_rate, static_cast<double>(sequences_per_step),
                            static_cast<double>(c.base_batch), parse_batch_scaling(c.batch_scaling));
  schedule.check();
  return schedule;
}

TrainerOptions trainer_options(const Config& config, const Model& model) {
  const RunConfig& run = config.run;
  TrainerOptions options;
  options.batch = {.sequences = run.sequences, .length = run.length};
  const Rounds rounds = rounds_of(config);
  options.microbatches = rounds.count;
  options.last_round_ranks = rounds.last_ranks;
  // No more than the data hold: fit_evaluation().
  const bool counted = evaluates(config) && run.evaluation_microbatches > 0;
  options.evaluation_microbatches = counted ? static_cast<int>(run.evaluation_microbatches) : 1;
  options.exchange_chunks = static_cast<int>(config.strategy.exchange_chunks);
  options.generation = run.sample_tokens > 0;
  options.seed = static_cast<std::uint64_t>(run.seed);
  EngineOptions& engine = options.engine;
  engine.mesh = mesh_of(config.mesh);
  engine.strategy = strategy_of(config.strategy);
  engine.strategy.blocks = static_cast<int>(config.numerics.blocks);
  engine.strategy.offload = offload_of(config.offload);
  engine.disk_directory = config.offload.directory;
  engine.optimizer = optimizer_of(config, model);
  engine.clip.max_norm = config.optimizer.clip;
  if (config.precision.loss_scaling)
    engine.loss_scaling = LossScaleOptions{.initial = config.precision.initial_scale,
                                           .growth_interval = config.precision.growth_interval};
  engine.budget = {.device_bytes = run.device_memory,
                   .host_bytes = run.host_memory,
                   .names = {.device = "run.device_memory", .host = "run.host_memory"}};
  engine.device = run.device == "cuda" ? DeviceType::cuda : DeviceType::cpu;
  engine.threads_per_rank = static_cast<int>(run.threads_per_rank);
  engine.debug.strict_order = config.strategy.strict_order;
  engine.graphs = run.graphs;
  engine.waits.deadline = std::chrono::milliseconds(static_cast<std::int64_t>(run.deadline * 1000.0));
  return options;
}

// An evaluation ends with the validation data: no rank computes on what lies behind them, and 0 microbatches
// become as many as reach their end. UsageError where those cannot be planned.
void fit_evaluation(Setup& setup, const Sampler& validation) {
  const RunConfig& run = setup.config.run;
  const std::int64_t at_once = std::int64_t{setup.grid.mesh.data_ranks()} * setup.grid.sequences;
  const std::int64_t whole = (validation.windows() + at_once - 1) / at_once;
  constexpr std::int64_t most = std::numeric_limits<int>::max();
  if (run.evaluation_microbatches == 0 && whole > most)
    throw UsageError(
        fmt::format("run.evaluation_microbatches is 0, all of the validation data, and that is {} "
                    "microbatches; set {} at most, or make run.sequences larger",
                    whole, most));
  const std::int64_t microbatches =
      run.evaluation_microbatches == 0 ? whole : std::min(whole, run.evaluation_microbatches);
  setup.options.evaluation_microbatches = static_cast<int>(microbatches);
  setup.evaluation_grid.rounds.count = setup.options.evaluation_microbatches;
}

// Where the data cannot be opened, which a run refuses, a number of microbatches can be planned all the same.
void open_and_fit(Setup& setup) {
  const bool all = setup.config.run.evaluation_microbatches == 0;
  if (all && trained_on(setup.config).empty())
    throw UsageError(
        "run.evaluation_microbatches is 0, all of the validation data, and data.train is empty; name the "
        "data, or give a number");
  try {
    setup.data = std::make_shared<const Data>(open_data(setup));
  } catch (const Error& error) {
    if (all) throw;
    setup.not_opened = error.what();
    return;
  }
  fit_evaluation(setup, *setup.data->validation);
}

Lora lora_of(const LoraConfig& config) {
  return {.rank = config.rank, .alpha = config.alpha, .targets = config.targets};
}

Model model_of(const Config& config, const Dimensions& dimensions) {
  const DType type = parse_dtype(config.precision.parameters);
  Model model = std::visit(
      [&](auto of) {
        of.sequence_parallel = config.strategy.sequence_parallel;
        of.fp8_products = config.precision.products == "fp8";
        of.lora = lora_of(config.lora);
        return make_model(of, type);
      },
      dimensions);
  model = with_frozen(std::move(model), config.model.frozen, "model.frozen");
  std::vector<LearningRateFactor> factors;
  for (const auto& [pattern, factor] : config.optimizer.rates) factors.push_back({pattern, factor});
  model = with_rate_factors(std::move(model), factors, "optimizer.rates");
  return with_tensor_blocks(std::move(model), static_cast<int>(config.numerics.tensor_blocks));
}

Setup setup_of(const Config& config, bool trains) {
  Setup setup;
  setup.config = config;
  setup.dimensions = dimensions_of(config.model);
  check_batch(setup);
  setup.model = std::make_shared<const Model>(model_of(config, setup.dimensions));
  check_parameters(setup);
  setup.options = trainer_options(config, *setup.model);
  setup.options.trains = trains;
  check_sums(setup);
  setup.options.engine.strategy.check();
  setup.options.engine.optimizer.check();
  if (setup.options.engine.loss_scaling) setup.options.engine.loss_scaling->check();
  setup.grid = {.mesh = setup.options.engine.mesh,
                .rounds = rounds_of(config),
                .sequences = setup.options.batch.sequences};
  setup.evaluation_grid = setup.grid;
  setup.evaluation_grid.rounds = {.count = setup.options.evaluation_microbatches};
  setup.schedule = schedule_of(config, setup.grid.samples_per_step());
  if (evaluates(config)) open_and_fit(setup);  // all that follows depends on it
  setup.options.engine.strategy.pipeline =
      pipeline_of(config, *setup.model, setup.options, allowed_choices(config));
  choose_within_budget(config, *setup.model, setup.options);
  return setup;
}

}  // namespace

Setup make_setup(const Config& config) {
  return told_with_origins(config, [&] { return setup_of(config, true); });
}

Setup make_inference_setup(const Config& config) {
  return told_with_origins(config, [&] { return setup_of(config, false); });
}

bool Setup::copies() const {
  const Strategy& strategy = options.engine.strategy;
  return strategy.offload != Offload{} ||
         std::ranges::any_of(strategy.unit_activations,
                             [](const ActivationChoice& choice) { return choice.kept != Space::device; });
}

std::optional<Config> stored_config(const std::string& configuration) {
  if (configuration.find("[model]") == std::string::npos) return std::nullopt;  // the tool writes every key
  try {
    return read_config(configuration, "checkpoint");  // which an earlier build may have checked otherwise
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

void check_same_model(const Config& stored, const Setup& setup, const std::string& checkpoint) {
  const auto function_of = [&](Dimensions dimensions) {
    return std::visit(
        [](auto& of) {
          of.context = 1;  // how long a sequence may be changes nothing of shorter ones
          of.dropout = of.attention_dropout = 0.0;  // nor of what it computes when it is trained
          return hugging_face_config(of, DType::fp32);
        },
        dimensions);
  };
  const auto adapters_of = [](const Config& config) {
    return std::visit(
        [&](auto of) {
          of.layers = 1;
          of.lora = lora_of(config.lora);
          return make_model(of, DType::fp32).lora;
        },
        dimensions_of(config.model));
  };
  if (function_of(dimensions_of(stored.model)) == function_of(setup.dimensions) &&
      adapters_of(stored) == adapters_of(setup.config))
    return;
  std::vector<std::string> changes;
  for (const std::string& change : differences(stored, setup.config))
    if (change.starts_with("model.") || change.starts_with("lora.")) changes.push_back(change);
  throw UsageError(with_origins(fmt::format("the checkpoint in '{}' is of a model that computes something "
                                            "else ({}); keep the keys of [model] and [lora]",
                                            checkpoint, fmt::join(changes, ", ")),
                                setup.config));
}

std::vector<std::string> changes_since(const Config& stored, const Config& now) {
  std::vector<std::string> changes = differences(stored, now);
  const auto irrelevant = [&](const std::string& change) {
    // The checkpoint's are taken, and what is exported changes no training.
    for (const char* key : {"model.weights:", "model.adapter:", "lora.merge:"})
      if (change.starts_with(key)) return true;
    if (!change.starts_with("run.")) return false;
    if (change.starts_with("run.steps:"))  // where the schedule ends with them
      return now.schedule.kind == "constant" || now.schedule.total_steps > 0;
    if (change.starts_with("run.seed:"))
      return now.model.dropout == 0.0 && now.model.attention_dropout == 0.0;
    return std::ranges::none_of(std::array{"run.length:", "run.sequences:", "run.microbatches:",
                                           "run.threads_per_rank:", "run.device:"},
                                [&](const char* key) { return change.starts_with(key); });
  };
  std::erase_if(changes, irrelevant);
  return changes;
}

}  // namespace tessera::cli
