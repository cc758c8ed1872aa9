#include "src/cli/inference_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <system_error>

#include "src/cli/config_keys.h"
#include "src/cli/dimensions.h"
#include "src/cli/kept_files.h"
#include "src/cli/setup.h"
#include "src/cli/stored_adapter.h"
#include "src/cli/stored_model.h"
#include "tessera/checkpoint.h"
#include "tessera/machine.h"

namespace tessera::cli {

namespace {

// Keys, or with a point at the end sections, that count where nothing is trained.
constexpr std::array kCounting = {"model.",
                                  "lora.",
                                  "mesh.",
                                  "pipeline.",
                                  "strategy.stage",
                                  "strategy.reduction",
                                  "strategy.prefetch",
                                  "strategy.resident_units",
                                  "strategy.sequence_parallel",
                                  "strategy.exchange_chunks",
                                  "strategy.state_over_replicas",
                                  "strategy.parameters_over_replicas",
                                  "strategy.strict_order",
                                  "numerics.tensor_blocks",
                                  "offload.parameters",
                                  "offload.staged",
                                  "offload.directory",
                                  "precision.parameters",
                                  "run.sequences",
                                  "run.length",
                                  "run.seed",
                                  "run.device",
                                  "run.threads_per_rank",
                                  "run.pin",
                                  "run.device_memory",
                                  "run.host_memory",
                                  "run.deadline"};
constexpr std::array kOnlyTraining = {"model.dropout", "model.attention_dropout", "model.frozen",
                                      "lora.merge"};

bool counts(const std::string& key) {
  return std::ranges::find(kOnlyTraining, key) == kOnlyTraining.end() &&
         std::ranges::any_of(kCounting, [&](std::string_view one) {
           return one.ends_with('.') ? key.starts_with(one) : key == one;
         });
}

void reset_training(Config& config) {
  config.optimizer = {};
  Config defaults;
  const std::vector<Key> keys = keys_of(config), unset = keys_of(defaults);
  for (std::size_t k = 0; k < keys.size(); ++k)
    if (!counts(keys[k].name)) assign(unset[k], keys[k]);
  config.run.steps = 1;
}

// Keys of [model] that may be otherwise than in the run that saved the weights.
bool is_free(const Config& config, const std::string& key) {
  constexpr std::array kFree = {"model.weights", "model.allow_nonfinite_weights", "model.logits_memory"};
  return std::ranges::find(kFree, key) != kFree.end() ||
         (key == "model.context" && config.model.family == "llama");  // GPT-2 has a table of positions
}

// The keys of [model] and the type, from the configuration that a checkpoint was saved with.
void complete_by_checkpoint(Config& config, const InferenceWeights& weights) {
  const std::string checkpoint = weights.checkpoint.string();
  std::optional<Config> stored = stored_config(inspect_checkpoint(weights.checkpoint).state.configuration);
  if (!stored)
    throw UsageError(fmt::format(
        "{}: the checkpoint '{}' tells no configuration of this build's, so that its model is "
        "not known; export it first (tessera checkpoint export), with the configuration of its run",
        weights.by, checkpoint));
  Config theirs = *stored;
  theirs.model = keys_for(dimensions_of(stored->model));  // with the preset's values written out
  theirs.model.preset = stored->model.preset;
  theirs.model.pad_vocabulary_to = stored->model.pad_vocabulary_to;
  theirs.model.logits_memory = stored->model.logits_memory;
  const std::vector<Key> own = keys_of(config), other = keys_of(theirs);
  for (std::size_t k = 0; k < own.size(); ++k) {
    const std::string& name = own[k].name;
    const bool of_model = own[k].section() == "model" || own[k].section() == "lora";
    if ((!of_model && name != "precision.parameters") || name == "model.weights" || !counts(name)) continue;
    const bool written = config.origins.written(name) && (!of_model || !stands_for_preset(own[k]));
    if (!written) {
      assign(other[k], own[k]);
      config.origins.fill(name, fmt::format("'{}'", checkpoint));
      continue;
    }
    if (!of_model || is_free(config, name) || value_text(own[k]) == value_text(other[k])) continue;
    throw UsageError(fmt::format("{} is {}, but the checkpoint '{}' was saved with {}; leave the key out",
                                 name, value_text(own[k]), checkpoint, value_text(other[k])));
  }
  config.model.weights = config.model.adapter = "";  // all of which the checkpoint has
  config.notes.push_back(fmt::format("model     by checkpoint '{}'", checkpoint));
}

void complete_by_folder(Config& config, const InferenceWeights& weights) {
  config.model.weights = weights.named.string();
  complete_model(config, {}, false, weights.by);
  complete_adapter(config);
  const auto file = stored_config_file(weights.named);
  if (!file || config.origins.written("precision.parameters")) return;
  const std::string type = read_stored_model(*file, weights.by).type;
  if (type.empty()) return;
  config.precision.parameters = type;
  config.origins.fill("precision.parameters", fmt::format("'{}'", file->string()));
}

std::filesystem::path checkpoint_at(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return {};
  return latest_checkpoint(path).value_or("");
}

// Refuses a folder that is near the weights and has none: an adapter's, or the one around a run's
// checkpoints.
void check_folder(const InferenceWeights& weights) {
  namespace fs = std::filesystem;
  const std::string folder = weights.named.string();
  if (!fs::is_directory(weights.named) || fs::exists(weights.named / kConfigFile)) return;
  if (fs::exists(weights.named / kAdapterFile))
    throw UsageError(
        fmt::format("{}: '{}' has an adapter; name the model that it was trained on there, and give the "
                    "adapter by --adapter {}",
                    weights.by, folder, folder));
  std::vector<std::string> runs;
  for (const fs::directory_entry& entry : fs::directory_iterator(weights.named)) {
    if (entry.path().extension() == ".safetensors") return;
    if (!checkpoint_at(entry.path()).empty()) runs.push_back(entry.path().string());
  }
  throw UsageError(fmt::format("{}: '{}' has no weights; name {}", weights.by, folder,
                               runs.empty()
                                   ? "a Hugging Face folder, or the folder of a run's checkpoints"
                                   : fmt::format("'{}', which has checkpoints", std::ranges::min(runs))));
}

}  // namespace

InferenceWeights find_weights(const std::string& argument, const Config& config) {
  const std::string& key = config.model.weights;
  if (argument.empty() && !config.run.checkpoint.empty())
    if (const auto found = checkpoint_at(config.run.checkpoint); !found.empty())
      return {.named = config.run.checkpoint, .by = "run.checkpoint", .checkpoint = found};
  if (argument.empty() && key.empty())
    throw UsageError(
        config.run.checkpoint.empty()
            ? "nothing names the weights; give --weights DIR, a Hugging Face folder or the folder of a run's "
              "checkpoints"
            : fmt::format("run.checkpoint, '{}', has no checkpoint yet; give the weights by --weights DIR",
                          config.run.checkpoint));
  InferenceWeights weights = {.named = argument.empty() ? key : argument,
                              .by = argument.empty() ? "model.weights" : "--weights",
                              .checkpoint = {}};
  std::error_code error;
  if (!std::filesystem::exists(weights.named, error))
    throw EnvironmentError(
        fmt::format("{}: there is nothing at '{}'; name a Hugging Face folder, or the folder "
                    "of a run's checkpoints",
                    weights.by, weights.named.string()));
  weights.checkpoint = checkpoint_at(weights.named);
  if (weights.checkpoint.empty()) check_folder(weights);
  return weights;
}

void check_settings(Config& config, std::span<const std::string> settings) {
  const std::vector<Key> keys = keys_of(config);
  for (const std::string& setting : settings) {
    const std::string name = setting.substr(0, setting.find('='));
    if (!counts(name) && std::ranges::find(keys, name, &Key::name) != keys.end())
      throw UsageError(fmt::format(
          "--set {}: the key matters in training only, and this command trains nothing; leave it out",
          setting));
  }
}

void complete_for_inference(Config& config, const InferenceWeights& weights) {
  reset_training(config);
  if (weights.checkpoint.empty())
    complete_by_folder(config, weights);
  else
    complete_by_checkpoint(config, weights);
  if (!config.origins.written("run.threads_per_rank")) {
    config.run.threads_per_rank = std::max(1, read_cores() / mesh_of(config.mesh).world());
    config.origins.fill("run.threads_per_rank", "the cores");
  }
  if (config.origins.written("run.length")) return;
  config.run.length = std::visit([](const auto& of) { return of.context; }, dimensions_of(config.model));
  config.origins.fill("run.length", "model.context");
}

}  // namespace tessera::cli
