// complete_model(): the keys of [model] that the weights to start from give.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "src/cli/config_keys.h"
#include "src/cli/dimensions.h"
#include "src/cli/kept_files.h"
#include "src/cli/stored_model.h"
#include "tessera/error.h"

namespace tessera::cli {

namespace {

// The key named so, among all of a configuration.
const Key& key_named(const std::vector<Key>& keys, const std::string& name) {
  return *std::ranges::find(keys, name, &Key::name);
}

// What config.json says must be what the user wrote, be it by a key or by a preset.
class Filler {
 public:
  // `key` names the weights.
  Filler(Config& config, const StoredModel& stored, const std::string& key)
      : config_(config), stored_(stored), key_(key) {
    theirs_.model = stored.model;
    presets_.model =
        keys_for(dimensions_of({.family = family_of(config.model.preset), .preset = config.model.preset}));
  }

  void fill() {
    const bool preset = config_.origins.written("model.preset");
    if (config_.origins.written("model.family")) check("family", config_, "");
    if (preset) check("family", presets_, by_preset());
    const std::vector<Key> own = keys_of(config_), theirs = keys_of(theirs_);
    for (const auto& [leaf, told] : stored_.told) {
      const std::string name = "model." + leaf;
      const Key& key = key_named(own, name);
      const bool written = config_.origins.written(name) && (leaf == "family" || !stands_for_preset(key));
      if (written) {
        check(leaf, config_, "");
        continue;
      }
      if (preset) check(leaf, presets_, by_preset());
      assign(key_named(theirs, name), key);
      config_.origins.fill(name, fmt::format("'{}'", stored_.file.string()));
    }
    if (!preset) config_.model.preset = stored_.model.preset;  // which no dimension is left to
  }

 private:
  std::string by_preset() const {
    return fmt::format("model.preset is \"{}\", whose ", config_.model.preset);
  }

  void check(const std::string& leaf, Config& ours, const std::string& owner) {
    const std::vector<Key> mine = keys_of(ours), theirs = keys_of(theirs_);
    const std::string name = "model." + leaf;
    const std::string value = value_text(key_named(mine, name));
    if (value == value_text(key_named(theirs, name))) return;
    throw UsageError(fmt::format("{}{} is {}, but '{}' has {}; leave {} out, or take other {}", owner,
                                 owner.empty() ? name : leaf, value, stored_.file.string(),
                                 stored_.told.at(leaf), owner.empty() ? name : "model.preset", key_));
  }

  Config& config_;
  const StoredModel& stored_;
  const std::string& key_;
  Config theirs_, presets_;
};

// The keys that decide what is computed, and no tensor's shape.
std::vector<std::string> keys_of_no_tensor(const std::string& family) {
  if (family == "gpt2") return {"model.heads"};
  return {"model.heads", "model.rope_theta", "model.rope_scaling", "model.norm_epsilon"};
}

// Without a config.json: refuses what nobody said; tells what only the user said.
void take_as_written(Config& config, const std::string& key, const std::string& why) {
  const std::string& family = config.model.family;
  Config resolved;
  resolved.model = keys_for(dimensions_of(config.model));
  const std::vector<Key> own = keys_of(config), values = keys_of(resolved);
  std::vector<std::string> unknown, unchecked;
  for (const std::string& name : keys_of_no_tensor(family)) {
    const bool written = config.origins.written(name) && !stands_for_preset(key_named(own, name));
    if (!written && !config.origins.written("model.preset")) unknown.push_back(name);
    unchecked.push_back(fmt::format("{} {}", name, value_text(key_named(values, name))));
  }
  if (!unknown.empty())
    throw UsageError(fmt::format("{}: {}, and no tensor tells {}; write {}, or model.preset", key, why,
                                 fmt::join(unknown, ", "), unknown.size() == 1 ? "it" : "them"));
  config.notes.push_back(fmt::format(
      "weights   {}: not checked are {}, and that the activation function{} {}'s", why,
      fmt::join(unchecked, ", "), family == "gpt2" ? ", epsilon and scale of attention are" : " is",
      family == "gpt2" ? "GPT-2" : "Llama"));
}

std::string list_of(const StoredModel& stored) {
  std::string list;
  for (const auto& [leaf, told] : stored.told) list += fmt::format("{}{}", list.empty() ? "" : ", ", told);
  return list;
}

// What a person should know where a run drops another share than its weights were trained with.
void note_dropout(Config& config, const StoredModel& stored) {
  const ModelConfig& model = config.model;
  std::string other;
  for (const auto& [name, share] : stored.dropouts) {
    const bool of_attention = name.starts_with("att");
    if (share != (of_attention ? model.attention_dropout : model.dropout))
      other += fmt::format("{}{} {}", other.empty() ? "" : ", ", name, number_text(share));
  }
  if (other.empty()) return;
  config.notes.push_back(
      fmt::format("weights   config.json has {}; this run drops {} (model.dropout) and {} "
                  "(model.attention_dropout)",
                  other, model.dropout, model.attention_dropout));
}

// The preset that a family alone means.
void note_family(Config& config) {
  if (config.origins.source("model.preset") != "model.family") return;
  config.notes.push_back(
      fmt::format("model     {}, the smallest preset of model.family \"{}\"; model.preset names another",
                  config.model.preset, config.model.family));
}

}  // namespace

void complete_model(Config& config, const std::filesystem::path& run_folder, bool trains,
                    const std::string& key) {
  const std::string& weights = config.model.weights;
  if (weights.empty()) return note_family(config);
  std::optional<std::filesystem::path> file = stored_config_file(weights);
  std::error_code error;
  const bool there = std::filesystem::exists(weights, error);
  if (!file) file = kept_config_file(run_folder);
  if (!file) {
    take_as_written(config, key,
                    there ? fmt::format("there is no config.json beside '{}'", weights)
                          : fmt::format("there is nothing at '{}'", weights));
    return note_family(config);
  }
  const StoredModel stored = read_stored_model(*file, key);
  Filler(config, stored, key).fill();
  config.notes.push_back(fmt::format("model     by '{}': {}", file->string(), list_of(stored)));
  if (trains) note_dropout(config, stored);
}

}  // namespace tessera::cli
