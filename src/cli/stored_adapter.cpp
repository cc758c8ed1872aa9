#include "src/cli/stored_adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "src/cli/config_keys.h"
#include "src/cli/dimensions.h"
#include "src/cli/files.h"
#include "src/cli/kept_files.h"
#include "tessera/error.h"

namespace tessera::cli {

namespace {

using nlohmann::json;

// The values of an adapter_config.json.
class Stored {
 public:
  Stored(std::filesystem::path file, std::string key) : file_(std::move(file)), key_(std::move(key)) {
    const std::optional<std::string> text = read_text(file_);
    if (!text)
      throw EnvironmentError(
          fmt::format("{}: cannot read '{}': {}", key_, file_.string(), std::strerror(errno)));
    values_ = json::parse(*text, nullptr, false);
    if (!values_.is_object())
      throw EnvironmentError(fmt::format("{}: '{}' is no JSON object", key_, file_.string()));
  }

  [[noreturn]] void refuse(const std::string& name, const json& value, const std::string& right) const {
    throw UsageError(fmt::format("{}: '{}' has {} {}; {}", key_, file_.string(), name, value.dump(), right));
  }

  // null where the key is missing.
  json find(const std::string& name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? json(nullptr) : *found;
  }

  // A missing value is supported; so is null.
  void require(const std::string& name, const std::vector<json>& supported,
               const std::string& hint = "") const {
    const json value = find(name);
    if (value.is_null() || std::ranges::find(supported, value) != supported.end()) return;
    std::string list;
    for (const json& one : supported) list += (list.empty() ? "" : " or ") + one.dump();
    refuse(name, value, fmt::format("supported is {}{}", list, hint));
  }

  // What this program does not know may change what is computed, unless it is switched off.
  void refuse_others(const std::set<std::string>& known) const {
    for (const auto& [name, value] : values_.items()) {
      const bool off = value.is_null() || value == false || value == json::object() || value == json::array();
      if (!off && !known.contains(name))
        refuse(name, value,
               "supported is null: adapters of one rank and scale, on the same layers of all blocks");
    }
  }

 private:
  const std::filesystem::path file_;
  const std::string key_;
  json values_;
};

// What says how the file came about, and nothing of what is computed; and what read_stored_adapter() reads.
const std::set<std::string> kKnown = {"peft_type",
                                      "task_type",
                                      "r",
                                      "lora_alpha",
                                      "lora_dropout",
                                      "bias",
                                      "target_modules",
                                      "fan_in_fan_out",
                                      "init_lora_weights",
                                      "auto_mapping",
                                      "base_model_name_or_path",
                                      "revision",
                                      "inference_mode",
                                      "peft_version",
                                      "megatron_core",
                                      "qalora_group_size",
                                      "eva_config"};

// The names in target_modules, each once. A path of one block's layer, as PEFT writes them for GPT-2's
// "all-linear", stands for the layer if all blocks have it.
std::vector<std::string> targets_of(const Stored& file, const std::string& family, std::int64_t layers) {
  const json modules = file.find("target_modules");
  std::vector<std::string> targets;
  if (modules.is_string()) {
    if (modules != kAllLinear)
      file.refuse("target_modules", modules,
                  fmt::format("supported is a list of names, or \"{}\"; a pattern is not", kAllLinear));
    return {std::string(kAllLinear)};
  }
  if (modules.is_null()) return lora_default_targets(family);
  const bool names = modules.is_array() && !modules.empty() &&
                     std::ranges::all_of(modules, [](const json& name) { return name.is_string(); });
  if (!names) file.refuse("target_modules", modules, "it must be a list of names of layers");
  const std::string blocks = family == "gpt2" ? "h." : "layers.";
  std::map<std::string, std::set<std::string>> of_blocks;  // by layer within a block, the blocks
  for (const std::string name : modules) {
    const std::size_t at = name.starts_with(blocks) ? 0 : name.find("." + blocks);
    if (at == name.npos) {
      targets.push_back(name);
      continue;
    }
    const std::size_t number = name.find(blocks, at) + blocks.size(), dot = name.find('.', number);
    if (dot == name.npos) file.refuse("target_modules", name, "it names no layer");
    of_blocks[name.substr(dot + 1)].insert(name.substr(number, dot - number));
  }
  for (const auto& [layer, numbers] : of_blocks) {
    for (std::int64_t block = 0; block < layers; ++block)
      if (!numbers.contains(std::to_string(block)))
        file.refuse(
            "target_modules", modules,
            fmt::format("'{}' is there for some blocks, and not for block {}; supported is all blocks", layer,
                        block));
    targets.push_back(layer);
  }
  return targets;
}

}  // namespace

Lora read_stored_adapter(const std::filesystem::path& path, const std::string& family, std::int64_t layers,
                         const std::string& key) {
  const Stored file(path, key);
  if (const json type = file.find("peft_type"); type != "LORA")
    file.refuse("peft_type", type, "supported is \"LORA\"");
  file.require("task_type", {"CAUSAL_LM"});
  file.require("bias", {"none"});
  file.require("lora_dropout", {0.0, 0},
               "; to train without dropout, write 0 there: what the adapter computes does not change");
  file.require("init_lora_weights", {true, false, "gaussian", "orthogonal", "eva"},
               ": others change the weights that are adapted");
  file.require("use_rslora", {false},
               "; write false there and lora_alpha times the square root of r, which is the same");
  file.refuse_others(kKnown);
  Lora lora;
  const json rank = file.find("r"), alpha = file.find("lora_alpha");
  if (!rank.is_number_integer() || rank < 1 || rank > 65536)
    file.refuse("r", rank, "it must be an integer from 1 to 65536");
  if (!alpha.is_number() || !std::isfinite(alpha.get<double>()) || alpha.get<double>() <= 0.0)
    file.refuse("lora_alpha", alpha, "it must be a number above 0");
  lora.rank = rank;
  lora.alpha = alpha;
  lora.targets = lora_layers(family, targets_of(file, family, layers),
                             fmt::format("{}: target_modules of '{}'", key, path.string()));
  return lora;
}

namespace {

// A key that the user wrote says what the file says; else it gets that.
void fill(Config& config, const Key& own, const Key& theirs, const std::filesystem::path& file) {
  if (!config.origins.written(own.name)) {
    assign(theirs, own);
    config.origins.fill(own.name, fmt::format("'{}'", file.string()));
    return;
  }
  if (value_text(own) != value_text(theirs))
    throw UsageError(fmt::format("{} is {}, but '{}' has {}; leave {} out, or take another model.adapter",
                                 own.name, value_text(own), file.string(), value_text(theirs), own.name));
}

}  // namespace

void complete_adapter(Config& config, const std::filesystem::path& run_folder) {
  if (config.model.adapter.empty()) return;
  if (config.model.weights.empty())
    throw UsageError(
        fmt::format("model.adapter is '{}' and model.weights is empty; name the weights that it adapts",
                    config.model.adapter));
  std::filesystem::path file = std::filesystem::path(config.model.adapter) / kAdapterFile;
  std::error_code error;
  if (!exists(symlink_status(file, error)))
    if (const auto kept = kept_adapter_file(run_folder)) file = *kept;
  const std::int64_t layers =
      std::visit([](const auto& of) { return of.layers; }, dimensions_of(config.model));
  const Lora lora = read_stored_adapter(file, config.model.family, layers, "model.adapter");
  // What stands for others, "all-linear" say, is compared as these.
  LoraConfig& own = config.lora;
  if (config.origins.written("lora.targets")) own.targets = lora_layers(config.model.family, own.targets);
  if (config.origins.written("lora.alpha") && own.alpha == 0.0) own.alpha = static_cast<double>(lora.rank);
  Config theirs;
  theirs.lora.rank = lora.rank;
  theirs.lora.alpha = lora.alpha;
  theirs.lora.targets = lora.targets;
  const std::vector<Key> mine = keys_of(config), other = keys_of(theirs);
  for (std::size_t k = 0; k < mine.size(); ++k)
    if (mine[k].name == "lora.rank" || mine[k].name == "lora.alpha" || mine[k].name == "lora.targets")
      fill(config, mine[k], other[k], file);
  config.notes.push_back(fmt::format("adapter   by '{}': r {}, lora_alpha {}, target_modules {}",
                                     file.string(), lora.rank, lora.alpha, fmt::join(lora.targets, " ")));
}

}  // namespace tessera::cli
