// TOML and `--set` into a Config, through the table of keys.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <toml++/toml.h>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "src/cli/config_keys.h"

namespace tessera::cli {

namespace {

// Where a value was written, and as what.
struct Written {
  std::string where;  // "demo.toml:12" or "--set"
  const toml::node& value;
};

std::string shown(const toml::node& value) {
  if (const auto number = value.value_exact<double>()) return number_text(*number);
  std::ostringstream out;
  out << toml::node_view<const toml::node>(&value);
  std::string text = out.str();
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

[[noreturn]] void refuse(const Key& key, const Written& written) {
  throw UsageError(fmt::format("{}: {} is {}; it must be {}", written.where, key.name, shown(written.value),
                               allowed(key)));
}

bool is_power_of_two(double value) {
  int exponent = 0;
  return std::frexp(value, &exponent) == 0.5;
}

bool in_range(const Key& key, double value) {
  if (key.or_zero && value == 0.0) return true;
  return std::isfinite(value) && (key.above_min ? value > key.min : value >= key.min) && value <= key.max &&
         (!key.power_of_two || is_power_of_two(value));
}

// Not as a double, which has 2^53 for 2^53 + 1.
bool in_range(const Key& key, std::int64_t value) {
  return value >= static_cast<std::int64_t>(key.min) && value <= static_cast<std::int64_t>(key.max);
}

void set_text(const Key& key, const Written& written) {
  std::string value;
  if (const auto text = written.value.value_exact<std::string>())
    value = *text;
  else if (const auto flag = written.value.value_exact<bool>(); flag && key.boolean_words)
    value = *flag ? "true" : "false";
  else
    refuse(key, written);
  if (!key.words.empty() && std::find(key.words.begin(), key.words.end(), value) == key.words.end())
    refuse(key, written);
  *std::get<std::string*>(key.target) = value;
}

void set_integer(const Key& key, const Written& written) {
  std::int64_t& target = *std::get<std::int64_t*>(key.target);
  if (key.takes_auto() && written.value.value_exact<std::string>() == "auto") {
    target = kAuto;
    return;
  }
  const auto value = written.value.value_exact<std::int64_t>();
  if (!value || !in_range(key, *value)) refuse(key, written);
  target = *value;
}

void set_number(const Key& key, const Written& written) {
  if (key.takes_auto() && written.value.value_exact<std::string>() == "auto") {
    *std::get<double*>(key.target) = kAuto;
    return;
  }
  auto value = written.value.value_exact<double>();
  if (const auto whole = written.value.value_exact<std::int64_t>()) value = static_cast<double>(*whole);
  if (!value || !in_range(key, *value)) refuse(key, written);
  *std::get<double*>(key.target) = *value;
}

void set_bytes(const Key& key, const Written& written) {
  std::int64_t bytes = -1;
  if (const auto whole = written.value.value_exact<std::int64_t>()) bytes = *whole;
  if (const auto text = written.value.value_exact<std::string>()) bytes = parse_bytes(*text);
  if (!in_range(key, bytes)) refuse(key, written);
  *std::get<std::int64_t*>(key.target) = bytes;
}

std::vector<std::string> between_commas(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.size(), text.find(',', begin));
    std::string part = text.substr(begin, end - begin);
    while (part.starts_with(' ')) part.erase(0, 1);
    while (part.ends_with(' ')) part.pop_back();
    if (!text.empty()) parts.push_back(std::move(part));
    begin = end + 1;
  }
  return parts;
}

void set_texts(const Key& key, const Written& written) {
  std::vector<std::string> values;
  if (const auto text = written.value.value_exact<std::string>()) {
    values = between_commas(*text);
  } else if (const toml::array* const list = written.value.as_array()) {
    for (const toml::node& node : *list) {
      const auto value = node.value_exact<std::string>();
      if (!value) refuse(key, written);
      values.push_back(*value);
    }
  } else {
    refuse(key, written);
  }
  if (std::ranges::any_of(values, &std::string::empty)) refuse(key, written);
  *std::get<std::vector<std::string>*>(key.target) = std::move(values);
}

void set_factors(const Key& key, const Written& written) {
  std::vector<std::pair<std::string, double>> values;
  const auto add = [&](std::string name, const toml::node& value) {
    auto factor = value.value_exact<double>();
    if (const auto whole = value.value_exact<std::int64_t>()) factor = static_cast<double>(*whole);
    if (name.empty() || !factor || !std::isfinite(*factor) || *factor <= 0.0) refuse(key, written);
    values.emplace_back(std::move(name), *factor);
  };
  if (const auto text = written.value.value_exact<std::string>()) {
    for (const std::string& part : between_commas(*text)) {
      const std::size_t equals = std::min(part.size(), part.rfind('='));
      double factor = 0;
      const char* const end = part.data() + part.size();
      const char* const begin = std::min(part.data() + equals + 1, end);
      if (const auto [at, error] = std::from_chars(begin, end, factor); error != std::errc() || at != end)
        refuse(key, written);
      add(part.substr(0, equals), toml::value<double>(factor));
    }
  } else if (const toml::table* const table = written.value.as_table()) {
    for (const auto& [name, value] : *table) add(std::string(name.str()), value);
  } else {
    refuse(key, written);
  }
  std::ranges::sort(values);  // as a table has them
  if (std::ranges::adjacent_find(values, {}, &std::pair<std::string, double>::first) != values.end())
    refuse(key, written);
  *std::get<std::vector<std::pair<std::string, double>>*>(key.target) = std::move(values);
}

void set_value(const Key& key, const Written& written) {
  switch (key.kind) {
    case KeyKind::text:
      return set_text(key, written);
    case KeyKind::integer:
      return set_integer(key, written);
    case KeyKind::number:
      return set_number(key, written);
    case KeyKind::bytes:
      return set_bytes(key, written);
    case KeyKind::texts:
      return set_texts(key, written);
    case KeyKind::factors:
      return set_factors(key, written);
    case KeyKind::boolean:
      if (!written.value.is_boolean()) refuse(key, written);
      *std::get<bool*>(key.target) = *written.value.value_exact<bool>();
  }
}

// Keys by name, and the names for suggestions.
class Table {
 public:
  explicit Table(Config& config) : keys_(keys_of(config)), origins_(config.origins) {
    for (const Key& key : keys_) {
      names_.push_back(key.name);
      if (sections_.empty() || sections_.back() != key.section()) sections_.push_back(key.section());
    }
  }

  void set(const Key& key, const Written& written) const {
    set_value(key, written);
    origins_.write(key.name);
  }

  const Key& find(const std::string& name, const std::string& where) const {
    for (const Key& key : keys_)
      if (key.name == name) return key;
    const std::string near = meant(name);
    throw UsageError(where + ": unknown key '" + name + "'" +
                     (near.empty() ? "; docs/configuration.md lists all" : "; did you mean " + near + "?"));
  }

  void check_section(const std::string& name, const toml::node& value, const std::string& where) const {
    const bool known = std::find(sections_.begin(), sections_.end(), name) != sections_.end();
    if (known && value.is_table()) return;
    if (known)
      throw UsageError(fmt::format("{}: '{}' is a section; write [{}] above its keys", where, name, name));
    if (const std::string near = meant(name); !value.is_table() && !near.empty())
      throw UsageError(fmt::format("{}: '{}' stands in no section; did you mean {}?", where, name, near));
    throw UsageError(fmt::format("{}: unknown section '{}'; the sections are {}", where, name,
                                 fmt::join(sections_, ", ")));
  }

 private:
  // "'run.steps'": the key nearest to `name`, else those of its name in whatever section; empty: none.
  std::string meant(const std::string& name) const {
    if (const std::string near = closest(name, names_); !near.empty()) return "'" + near + "'";
    std::string near;
    for (const Key& key : keys_)
      if (key.leaf() == name.substr(name.find('.') + 1))
        near += fmt::format("{}'{}'", near.empty() ? "" : " or ", key.name);
    return near;
  }

  std::vector<Key> keys_;
  Origins& origins_;
  std::vector<std::string> names_, sections_;
};

std::string at(std::string_view source, const toml::source_region& region) {
  return fmt::format("{}:{}", source, region.begin.line);
}

toml::table parse_toml(std::string_view text, std::string_view source) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw UsageError(at(source, error.source()) + ": not TOML: " + std::string(error.description()));
  }
}

void apply_table(const Table& keys, const toml::table& table, std::string_view source) {
  for (const auto& [section, node] : table) {
    const std::string name(section.str());
    keys.check_section(name, node, at(source, node.source()));
    for (const auto& [leaf, value] : *node.as_table()) {
      const std::string where = at(source, value.source());
      keys.set(keys.find(name + "." + std::string(leaf.str()), where), {.where = where, .value = value});
    }
  }
}

bool is_utf8(const std::string& text) {
  try {
    nlohmann::json(text).dump();  // checks it
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

// "section.key=value". The value is TOML where it parses as that, and plain text otherwise; for a key that
// takes text it is plain text unless it is quoted.
void apply_setting(const Table& keys, const std::string& setting) {
  const std::size_t equals = setting.find('=');
  if (equals == std::string::npos || equals == 0)
    throw UsageError("--set " + setting + ": write section.key=value");
  const Key& key = keys.find(setting.substr(0, equals), "--set");
  const std::string text = setting.substr(equals + 1);
  if (!is_utf8(text))  // no configuration could hold it
    throw UsageError(fmt::format("--set: the value of '{}' is not UTF-8; use text that is", key.name));
  const toml::value<std::string> plain(text);
  const bool as_text = key.kind == KeyKind::text && !text.starts_with('"') && !text.starts_with('\'');
  toml::table table;
  const toml::node* node = &plain;
  if (!as_text) {
    try {
      table = toml::parse("value = " + text);
      if (table.size() == 1 && table.contains("value")) node = table.get("value");
    } catch (const toml::parse_error&) {
      // plain text: "4 GiB", "auto"
    }
  }
  keys.set(key, {.where = "--set", .value = *node});
}

void set_ranks(MeshConfig& mesh, std::int64_t ranks) {
  mesh.shard = ranks;
  for (const std::int64_t extent : {mesh.pipeline, mesh.replicate, mesh.tensor}) {
    if (mesh.shard % extent != 0)
      throw UsageError(
          fmt::format("--ranks is {}; it must be a multiple of mesh.pipeline × mesh.replicate × mesh.tensor, "
                      "{} × {} × {}",
                      ranks, mesh.pipeline, mesh.replicate, mesh.tensor));
    mesh.shard /= extent;
  }
}

// Without a preset, a family means its smallest one.
void choose_family(Config& config) {
  ModelConfig& model = config.model;
  if (model.family.empty()) {
    model.family = family_of(model.preset);
    if (config.origins.written("model.preset")) config.origins.fill("model.family", "preset " + model.preset);
  } else if (!config.origins.written("model.preset")) {
    model.preset = smallest_preset(model.family);
    config.origins.fill("model.preset", "model.family");
  }
}

// What a message quotes, a key or a value, may itself have several lines.
std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  return text;
}

}  // namespace

Config read_config(std::string_view text, std::string_view source,
                   std::span<const std::string> settings) try {
  const toml::table table = parse_toml(text, source);
  const auto read = [&](const std::string& optimizer) {
    Config config;
    config.model.family = "";  // which no key can say
    config.optimizer.kind = optimizer;
    const Table keys(config);
    apply_table(keys, table, source);
    for (const std::string& setting : settings) apply_setting(keys, setting);
    return config;
  };
  Config config = read(OptimizerConfig().kind);
  config = read(config.optimizer.kind);  // its keys are of the options of that optimizer
  choose_family(config);
  return config;
} catch (const UsageError& error) {
  throw UsageError(one_line(error.what()));
}

Config parse_config(std::string_view text, std::string_view source, std::span<const std::string> settings,
                    std::int64_t ranks, const std::function<void(Config&)>& complete) try {
  Config config = read_config(text, source, settings);
  if (ranks > 0) set_ranks(config.mesh, ranks);
  if (complete) complete(config);
  told_with_origins(config, [&] { check(config); });
  return config;
} catch (const UsageError& error) {
  throw UsageError(one_line(error.what()));
}

}  // namespace tessera::cli
