// Values of a Config that do not go together.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "src/cli/config_keys.h"
#include "src/cli/dimensions.h"
#include "src/cli/files.h"

namespace tessera::cli {

namespace {

void require(bool holds, const std::string& message) {
  if (!holds) throw UsageError(message);
}

void require_multiple(const char* key, std::int64_t value, const char* divisor_key, std::int64_t divisor,
                      bool even = false) {
  require(value % (divisor * (even ? 2 : 1)) == 0,
          fmt::format("model.{} is {}; it must be {} multiple of model.{}, which is {}", key, value,
                      even ? "an even" : "a", divisor_key, divisor));
}

void check_rope(const RopeScaling& scaling) {
  require(scaling.factor == 1.0 || scaling.high_frequency > scaling.low_frequency,
          fmt::format("model.rope_high_freq_factor is {}; it must be above model.rope_low_freq_factor, which "
                      "is {}",
                      scaling.high_frequency, scaling.low_frequency));
}

void check_dimensions(const Gpt2Config& model) {
  require_multiple("channels", model.channels, "heads", model.heads);
}

void check_dimensions(const LlamaConfig& model) {
  require_multiple("channels", model.channels, "heads", model.heads, true);  // it rotates them in pairs
  require_multiple("heads", model.heads, "kv_heads", model.kv_heads);
  check_rope(model.rope_scaling);
}

void check_blocks(const Config& config, std::int64_t layers) {
  const std::int64_t most = most_microbatches(layers);
  const std::int64_t of_rank = rounds_of(config).count;
  const bool given = config.run.microbatches_per_step > 0;
  require(of_rank <= most,
          fmt::format(
              "model.layers is {} and {}: that is {} blocks to plan, and {} are the most; make {} at most "
              "{}, or take fewer layers",
              layers,
              given ? fmt::format("run.microbatches_per_step is {}, {} of a rank",
                                  config.run.microbatches_per_step, of_rank)
                    : fmt::format("run.microbatches is {}", of_rank),
              layers * of_rank, kMostPlannedBlocks, given ? "those of a rank" : "run.microbatches", most));
}

void check_model(const Config& config) {
  const ModelConfig& model = config.model;
  require(
      model.family == family_of(model.preset),
      fmt::format("model.preset is \"{}\" and model.family is \"{}\", which has {}; leave model.family "
                  "out, or name one of these",
                  model.preset, model.family,
                  fmt::join(model.family == "llama" ? LlamaConfig::presets() : Gpt2Config::presets(), ", ")));
  std::visit(
      [&](const auto& dimensions) {
        check_dimensions(dimensions);
        check_blocks(config, dimensions.layers);
      },
      dimensions_of(model));
}

// Whether a model's long waves are made longer.
bool scales_rope(const ModelConfig& model) {
  if (model.family != "llama" || family_of(model.preset) != "llama") return false;
  return std::get<LlamaConfig>(dimensions_of(model)).rope_scaling.factor != 1.0;
}

// Keys that count only under a condition: where it does not hold, what they say would be lost silently.
struct Conditional {
  bool counts = true;
  std::string why_not;
  std::vector<std::string> keys;
};

std::vector<Conditional> conditional_keys(const Config& c) {
  std::vector<Conditional> rows = {
      {c.model.family == "llama",
       fmt::format("model.family is \"{}\", not \"llama\"", c.model.family),
       {"model.kv_heads", "model.hidden", "model.rope_theta", "model.rope_scaling",
        "model.rope_low_freq_factor", "model.rope_high_freq_factor", "model.rope_original_context",
        "model.norm_epsilon", "model.tied"}},
      {c.model.family != "llama" || scales_rope(c.model),
       "model.rope_scaling is 1: no wave is made longer",
       {"model.rope_low_freq_factor", "model.rope_high_freq_factor", "model.rope_original_context"}},
      {c.lora.rank > 0,
       "lora.rank is 0: there are no adapters",
       {"lora.alpha", "lora.targets", "lora.merge"}},
      {c.data.validation.empty() || c.data.validation_fraction == 0.0,
       "data.validation is set: nothing of data.train is kept for evaluation",
       {"data.validation_fraction"}},
      {c.mesh.pipeline > 1,
       "mesh.pipeline is 1: there is nothing to cut",
       {"pipeline.schedule", "pipeline.chunks", "pipeline.cuts", "pipeline.gather_once"}},
      {c.precision.loss_scaling,
       "precision.loss_scaling is false: there is no loss scale",
       {"precision.initial_scale", "precision.growth_interval"}},
      {moments_of(c.optimizer.chosen()) > 0,
       "optimizer.kind is \"sgd\" and optimizer.momentum is 0: there are no moments",
       {"precision.moments"}},
      {c.schedule.kind != "constant",
       "schedule.kind is \"constant\": there is no decay",
       {"schedule.total_steps", "schedule.final_factor"}},
      {c.schedule.kind == "warmup_stable_decay",
       fmt::format("schedule.kind is \"{}\", not \"warmup_stable_decay\"", c.schedule.kind),
       {"schedule.decay_steps"}},
      {c.schedule.batch_scaling != "none",
       "schedule.batch_scaling is \"none\": the learning rate stays as it is",
       {"schedule.base_batch"}},
  };
  for (const std::string& field : optimizer_fields()) {
    const std::vector<std::string_view> having = optimizers_with(field);
    rows.push_back(
        {std::ranges::find(having, c.optimizer.kind) != having.end(),
         fmt::format("optimizer.kind is \"{}\", not \"{}\"", c.optimizer.kind, fmt::join(having, "\" or \"")),
         {"optimizer." + field}});
  }
  return rows;
}

void check_conditions(const Config& config) {
  Config set = config, defaults;
  const std::vector<Key> keys = keys_of(set), unset = keys_of(defaults);
  for (const Conditional& row : conditional_keys(config)) {
    if (row.counts) continue;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (std::ranges::find(row.keys, keys[i].name) == row.keys.end()) continue;
      const std::string value = value_text(keys[i]), standard = value_text(unset[i]);
      require(value == standard,
              fmt::format("{} is {}, but {}; leave it at {}", keys[i].name, value, row.why_not, standard));
    }
  }
}

void check_pipeline(const Config& config) {
  const std::string& gather_once = config.pipeline.gather_once;
  require(
      gather_once == PipelineConfig{}.gather_once || config.strategy.stage == 3,
      fmt::format("pipeline.gather_once is \"{}\"; it needs strategy.stage = 3, where units are gathered; "
                  "the stage is {}",
                  gather_once, config.strategy.stage));
}

void check_strategy(const Config& config) {
  const StrategyConfig& strategy = config.strategy;
  require(strategy.resident_units == 0 || strategy.stage == 3,
          fmt::format(
              "strategy.resident_units needs strategy.stage = 3, where units are released; the stage is {}",
              strategy.stage));
  require(strategy.sequence_parallel || config.mesh.tensor > 1,
          fmt::format("strategy.sequence_parallel is false; it needs mesh.tensor of 2 or more, which is {}",
                      config.mesh.tensor));
  const std::int64_t chunks = strategy.exchange_chunks;
  require(chunks == 1 || strategy.sequence_parallel,
          fmt::format(
              "strategy.exchange_chunks is {} and strategy.sequence_parallel false; chunks are of the tokens "
              "that sequence parallelism gives to each rank, so it must be true",
              chunks));
  require(
      chunks == 1 || config.mesh.tensor > 1,
      fmt::format("strategy.exchange_chunks is {}; it needs mesh.tensor of 2 or more, whose ranks exchange "
                  "values; it is {}",
                  chunks, config.mesh.tensor));
  require(chunks == 1 || config.numerics.tensor_blocks == 1,
          fmt::format(
              "strategy.exchange_chunks is {} and numerics.tensor_blocks {}; blocks exchange values whole, "
              "so one of them must be 1",
              chunks, config.numerics.tensor_blocks));
  require(
      !strategy.state_over_replicas || (strategy.stage > 0 && config.mesh.replicate > 1),
      fmt::format("strategy.state_over_replicas needs strategy.stage of 1 or more and mesh.replicate of 2 or "
                  "more; they are {} and {}",
                  strategy.stage, config.mesh.replicate));
  require(!strategy.parameters_over_replicas || (strategy.stage == 3 && strategy.state_over_replicas),
          fmt::format(
              "strategy.parameters_over_replicas needs strategy.stage = 3 and strategy.state_over_replicas; "
              "they are {} and {}",
              strategy.stage, strategy.state_over_replicas));
  require(
      config.offload.parameters == "device" || strategy.stage == 3,
      fmt::format("offload.parameters is \"{}\"; it needs strategy.stage = 3, where parameters are sharded; "
                  "the stage is {}",
                  config.offload.parameters, strategy.stage));
  require(
      config.offload.states_on_device == 0 || config.offload.states_on_device == kAuto ||
          config.offload.states != "device",
      fmt::format("offload.states_on_device is {}, but offload.states is \"device\", where all are; set it "
                  "to \"host\" or \"disk\"",
                  config.offload.states_on_device));
  require(config.offload.parameters == "device" || !strategy.state_over_replicas ||
              strategy.parameters_over_replicas,
          fmt::format("offload.parameters is \"{}\" and strategy.state_over_replicas is true; that needs "
                      "strategy.parameters_over_replicas, too",
                      config.offload.parameters));
  require(
      config.offload.parameters == "device" || !strategy.parameters_over_replicas || config.mesh.shard > 1,
      fmt::format("offload.parameters is \"{}\" and strategy.parameters_over_replicas is true, but "
                  "mesh.shard is 1: replicas bring the slices of a parameter of one shard together on the "
                  "device; make mesh.shard 2 or more, offload.parameters \"device\", or "
                  "strategy.parameters_over_replicas and strategy.state_over_replicas false",
                  config.offload.parameters));
  require(strategy.update != "reduced" || (config.optimizer.clip == 0.0 && !config.precision.loss_scaling),
          fmt::format("strategy.update is \"reduced\", before the gradient's norm is known; it needs "
                      "optimizer.clip = 0 and precision.loss_scaling = false; they are {} and {}",
                      config.optimizer.clip, config.precision.loss_scaling));
  require(
      strategy.update != "next" || config.offload.states != "device",
      "strategy.update is \"next\", when the host updates what it keeps, and offload.states is \"device\"; "
      "set it to \"host\" or \"disk\"");
  require(config.precision.products != "fp8" || config.precision.parameters == "bf16",
          fmt::format("precision.products is \"fp8\", of what is bf16 elsewhere, but precision.parameters is "
                      "\"{}\"; set it to \"bf16\"",
                      config.precision.parameters));
  require(strategy.reduction == "exact" || config.run.device == "cuda",
          fmt::format("strategy.reduction is \"{}\", but run.device is \"{}\": only GPUs have a reduction "
                      "of their own; set it to \"exact\"",
                      strategy.reduction, config.run.device));
  require(config.offload.states_on_device != kAuto || config.run.device_memory > 0,
          "offload.states_on_device is \"auto\"; it needs the budget run.device_memory");
  require(!config.offload.directory.empty(),
          "offload.directory is empty; name a folder on a local disk, such as \".\"");
}

void check_budget(const Config& config) {
  require(config.offload.activations != "auto" || config.strategy.recompute == "auto",
          fmt::format(
              "offload.activations is \"auto\"; that needs strategy.recompute = \"auto\", which is \"{}\"",
              config.strategy.recompute));
  require(config.strategy.recompute != "auto" || config.run.device_memory > 0,
          "strategy.recompute is \"auto\"; it needs the budget run.device_memory");
  require(config.strategy.resident_units != kAuto || config.run.device_memory > 0,
          "strategy.resident_units is \"auto\"; it needs the budget run.device_memory");
}

void check_optimizer(const OptimizerConfig& optimizer) {
  const auto* sgd = std::get_if<SgdOptions>(&optimizer.chosen());
  require(sgd == nullptr || !sgd->nesterov || sgd->momentum > 0.0,
          "optimizer.nesterov needs an optimizer.momentum above 0");
}

void check_schedule(const Config& config) {
  const ScheduleConfig& schedule = config.schedule;
  require(schedule.batch_scaling == "none" || schedule.base_batch > 0,
          fmt::format("schedule.batch_scaling is \"{}\"; it needs schedule.base_batch, the batch that the "
                      "learning rate was found for",
                      schedule.batch_scaling));
  const std::int64_t total = schedule.total_steps > 0 ? schedule.total_steps : config.run.steps;
  if (schedule.kind == "constant" || only_evaluates(config)) return;
  require(total > 0, fmt::format("schedule.kind is \"{}\", which needs an end: set run.steps or "
                                 "schedule.total_steps",
                                 schedule.kind));
  require(schedule.warmup_steps <= total,
          fmt::format("schedule.warmup_steps is {}, more than the {} steps of the schedule",
                      schedule.warmup_steps, total));
  if (schedule.kind != "warmup_stable_decay") return;
  require(
      schedule.decay_steps > 0,
      "schedule.decay_steps is 0; schedule.kind = \"warmup_stable_decay\" needs at least 1: how many of the "
      "last steps decay");
  require(schedule.warmup_steps + schedule.decay_steps <= total,
          fmt::format("schedule.warmup_steps + decay_steps is {}, more than the {} steps of the schedule",
                      schedule.warmup_steps + schedule.decay_steps, total));
}

// What has an order in which ranks are added.
void require_exact(const StrategyConfig& strategy, const std::string& needed) {
  require(strategy.reduction == "exact",
          fmt::format("{} and strategy.reduction is \"{}\", which has no order; set strategy.reduction = "
                      "\"exact\"",
                      needed, strategy.reduction));
}

// Gradients are added in an order that is known, microbatch by microbatch. `needed`: the setting that needs
// it.
void require_ordered_sums(const StrategyConfig& strategy, const std::string& needed) {
  require(strategy.reduce != "last",
          fmt::format("{} and strategy.reduce is \"last\", with which a rank first adds up its own "
                      "microbatches; set it to \"each\" or \"automatic\"",
                      needed));
  require_exact(strategy, needed);
}

void check_tensor_blocks(const Config& config) {
  const std::int64_t blocks = config.numerics.tensor_blocks, ranks = config.mesh.tensor;
  require(std::has_single_bit(static_cast<std::uint64_t>(blocks)),
          fmt::format("numerics.tensor_blocks is {}; it must be a power of two", blocks));
  if (blocks == 1) return;
  require(blocks % ranks == 0,
          fmt::format("numerics.tensor_blocks is {} and mesh.tensor {}: each rank has as many blocks; make "
                      "numerics.tensor_blocks a multiple of mesh.tensor, which must then be a power of two",
                      blocks, ranks));
  require_exact(config.strategy, fmt::format("numerics.tensor_blocks is {}", blocks));
}

void check_numerics(const Config& config) {
  check_tensor_blocks(config);
  const std::int64_t blocks = config.numerics.blocks;
  require(std::has_single_bit(static_cast<std::uint64_t>(blocks)),
          fmt::format("numerics.blocks is {}; it must be a power of two", blocks));
  if (blocks == 1) return;
  require(blocks % config.mesh.replicate == 0,
          fmt::format("numerics.blocks is {} and mesh.replicate {}: each replica has as many blocks; make "
                      "numerics.blocks a multiple of mesh.replicate, which must then be a power of two",
                      blocks, config.mesh.replicate));
  const RunConfig& run = config.run;
  const bool given = run.microbatches_per_step > 0;
  const std::int64_t all =
      given ? run.microbatches_per_step : run.microbatches * config.mesh.replicate * config.mesh.shard;
  require(
      all % blocks == 0,
      fmt::format("numerics.blocks is {} and a step has {} microbatches: blocks are of as many each; make "
                  "{} a multiple of {}, or numerics.blocks smaller",
                  blocks, all,
                  given ? "run.microbatches_per_step" : "run.microbatches × mesh.replicate × mesh.shard",
                  blocks));
  require_ordered_sums(config.strategy, fmt::format("numerics.blocks is {}", blocks));
}

// A step's microbatches over all ranks, and what follows where they are no multiple of these.
void check_microbatches(const Config& config) {
  const std::int64_t all = config.run.microbatches_per_step, own = config.run.microbatches;
  if (all == 0) return;
  const Rounds rounds = rounds_of(config);
  const std::int64_t ranks = config.mesh.replicate * config.mesh.shard;
  require(own == RunConfig{}.microbatches || own == rounds.count,
          fmt::format(
              "run.microbatches_per_step is {} and run.microbatches is {}: on mesh.replicate × mesh.shard, "
              "{} × {} ranks, a step has {} of a rank; leave run.microbatches at {}",
              all, own, config.mesh.replicate, config.mesh.shard, rounds.count, RunConfig{}.microbatches));
  if (rounds.last_ranks == 0) return;
  const std::string uneven = fmt::format(
      "run.microbatches_per_step is {}, no multiple of the {} ranks of mesh.replicate × mesh.shard", all,
      ranks);
  require(
      config.mesh.replicate == 1 || config.numerics.blocks > 1,
      fmt::format("{}: that needs mesh.replicate = 1, where one sum takes microbatches in their order, or "
                  "numerics.blocks above 1; mesh.replicate is {}",
                  uneven, config.mesh.replicate));
  require_ordered_sums(config.strategy, uneven);
}

void check_run(const Config& config) {
  const RunConfig& run = config.run;
  require(!run.checkpoint.empty() || run.checkpoint_every == 0,
          "run.checkpoint_every is set but run.checkpoint, the folder, is not");
  require(!run.checkpoint.empty() || run.resume != "true",
          "run.resume is true but run.checkpoint, the folder, is not set");
  for (const auto& [key, path] : {std::pair("run.checkpoint", run.checkpoint),
                                  {"run.export", run.export_path},
                                  {"run.metrics", run.metrics},
                                  {"run.tensorboard", run.tensorboard},
                                  {"run.trace", run.trace}})
    require(path.empty() || why_no_output(path).empty(), fmt::format("{}: {}", key, why_no_output(path)));
  check_export("run.export", run.export_path, config);
  require(!evaluates(config) || !config.data.validation.empty() || config.data.validation_fraction > 0.0,
          fmt::format(
              "{} needs data.validation or a data.validation_fraction above 0",
              only_evaluates(config) ? "run.steps = 0, a run that only evaluates," : "run.evaluate_every"));
}

}  // namespace

void check_export(const char* name, const std::string& path, const Config& config) {
  if (path.empty()) return;
  const std::int64_t file_bytes = config.run.export_file_bytes;
  const bool adapter = exports_adapter(config);
  require(!adapter || !is_one_file(path),
          fmt::format("{} is one file, '{}', and lora.rank is {}: an adapter is a folder with its "
                      "adapter_config.json; name a folder, or set lora.merge = true for the whole model",
                      name, path, config.lora.rank));
  require(!adapter || file_bytes == 0,
          fmt::format(
              "run.export_file_bytes is {} and lora.rank is {}: an adapter is one file; leave it at 0, or "
              "set lora.merge = true for the whole model",
              file_bytes, config.lora.rank));
  require(file_bytes == 0 || !is_one_file(path),
          fmt::format("run.export_file_bytes is {}, which makes several files, and {} is one, '{}'; name a "
                      "folder, or --set run.export_file_bytes=0",
                      file_bytes, name, path));
}

void check(const Config& config) {
  check_numerics(config);
  check_model(config);
  check_conditions(config);
  check_microbatches(config);
  check_strategy(config);
  check_budget(config);
  check_pipeline(config);
  check_optimizer(config.optimizer);
  check_run(config);
  check_schedule(config);
}

}  // namespace tessera::cli
