// Where the values of keys came from, and how messages say it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "src/cli/config_keys.h"

namespace tessera::cli {

namespace {

bool is_part_of_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Whether the message has the name as a word of its own.
bool names(const std::string& message, const std::string& name) {
  for (std::size_t at = message.find(name); at != std::string::npos; at = message.find(name, at + 1)) {
    const std::size_t end = at + name.size();
    const bool begins = at == 0 || (!is_part_of_name(message[at - 1]) && message[at - 1] != '.');
    if (begins && (end == message.size() || !is_part_of_name(message[end]))) return true;
  }
  return false;
}

// The keys for which a model's preset has a value.
bool has_preset_value(const Key& key) {
  return key.section() == "model" && key.name != "model.logits_memory" && key.name != "model.dropout" &&
         key.name != "model.attention_dropout" && key.name != "model.weights" &&
         key.name != "model.adapter" && key.name != "model.frozen" && stands_for_preset(key);
}

std::string source_of(const Key& key, const Config& config) {
  if (has_preset_value(key)) return "from preset " + config.model.preset;
  const std::string source = config.origins.source(key.name);
  return source.empty() ? "by default" : "from " + source;
}

}  // namespace

bool Origins::written(const std::string& key) const {
  const auto found = sources_.find(key);
  return found != sources_.end() && found->second.empty();
}

std::string Origins::source(const std::string& key) const {
  const auto found = sources_.find(key);
  return found == sources_.end() ? "" : found->second;
}

std::string with_origins(const std::string& message, const Config& config) {
  Config copy = config;
  std::vector<std::pair<std::string, std::string>> groups;  // a source, and its keys
  for (const Key& key : keys_of(copy)) {
    const bool written = config.origins.written(key.name) && !has_preset_value(key);
    if (written || !names(message, key.name)) continue;
    const std::string source = source_of(key, config);
    const auto same = std::ranges::find(groups, source, [](const auto& group) { return group.first; });
    if (same == groups.end())
      groups.emplace_back(source, key.name);
    else
      same->second += ", " + key.name;
  }
  if (groups.empty()) return message;
  std::string told;
  for (const auto& [source, keys] : groups)
    told += fmt::format("{}{}: {}", told.empty() ? "" : "; ", source, keys);
  return fmt::format("{} ({})", message, told);
}

}  // namespace tessera::cli
