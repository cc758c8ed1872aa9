// Keys and configurations as text: what a key may be and is, TOML, differences, and the page that documents
// them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "src/cli/config_keys.h"

namespace tessera::cli {

namespace {

std::string range_text(const Key& key) {
  const bool low = key.min > std::numeric_limits<double>::lowest();
  const bool high = key.max < std::numeric_limits<double>::max();
  if (low && high && !key.above_min) return fmt::format(" from {} to {}", key.min, key.max);
  std::string result = low ? fmt::format("{} {}", key.above_min ? " above" : " of at least", key.min) : "";
  if (high) result += fmt::format("{}at most {}", low ? " and " : " of ", key.max);
  return result;
}

// "0, or a number above 1"; "a power of two from 1 to 16".
std::string allowed_number(const Key& key) {
  return fmt::format("{}{}{}{}", key.or_zero ? "0, or " : "",
                     key.power_of_two ? "a power of two" : "a number", range_text(key),
                     key.takes_auto() ? ", or \"auto\"" : "");
}

std::string joined(const std::vector<std::string>& words) {
  std::string result;
  for (std::size_t i = 0; i < words.size(); ++i)
    result += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + ("\"" + words[i] + "\"");
  return result;
}

struct Unit {
  std::string_view name;
  double bytes;
};

constexpr std::array<Unit, 9> kUnits = {{{"B", 1.0},
                                         {"KiB", 1024.0},
                                         {"MiB", 1048576.0},
                                         {"GiB", 1073741824.0},
                                         {"TiB", 1099511627776.0},
                                         {"kB", 1e3},
                                         {"MB", 1e6},
                                         {"GB", 1e9},
                                         {"TB", 1e12}}};

// "B, KiB or MiB"
std::string listed_units() {
  std::string result;
  for (std::size_t i = 0; i < kUnits.size(); ++i)
    result.append(i == 0 ? "" : i + 1 == kUnits.size() ? " or " : ", ").append(kUnits[i].name);
  return result;
}

// A TOML basic string.
std::string quoted(const std::string& value) {
  std::string result = "\"";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      result += std::string("\\") + c;
    else if (byte < 0x20 || byte == 0x7f)
      result += fmt::format("\\u{:04x}", byte);
    else
      result += c;
  }
  return result + "\"";
}

}  // namespace

std::string allowed(const Key& key) {
  switch (key.kind) {
    case KeyKind::text:
      return key.words.empty() ? "text" : joined(key.words);
    case KeyKind::integer:
      return "an integer" + range_text(key) + (key.takes_auto() ? ", or \"auto\"" : "");
    case KeyKind::number:
      return allowed_number(key);
    case KeyKind::boolean:
      return "true or false";
    case KeyKind::bytes:
      return fmt::format("bytes: an integer{}, or text such as \"512 MiB\" or \"4 GB\", in {}",
                         range_text(key), listed_units());
    case KeyKind::texts:
      return "a list of texts, such as [\"a\", \"b\"], or \"a,b\"";
    case KeyKind::factors:
      return "numbers above 0 by texts, such as { \"a\" = 0.1 }, or \"a=0.1,b=0.5\"";
  }
  return "";
}

std::string value_text(const Key& key) {
  if (const auto* const* value = std::get_if<bool*>(&key.target)) return **value ? "true" : "false";
  if (const auto* const* value = std::get_if<std::int64_t*>(&key.target))
    return key.takes_auto() && **value == kAuto ? "\"auto\"" : std::to_string(**value);
  if (const auto* const* value = std::get_if<double*>(&key.target)) {
    if (key.takes_auto() && **value == kAuto) return "\"auto\"";
    return number_text(**value);
  }
  if (const auto* const* list = std::get_if<std::vector<std::string>*>(&key.target)) {
    std::string text;
    for (const std::string& value : **list) text += (text.empty() ? "" : ", ") + quoted(value);
    return "[" + text + "]";
  }
  if (const auto* const* list = std::get_if<std::vector<std::pair<std::string, double>>*>(&key.target)) {
    std::string text;
    for (const auto& [name, factor] : **list)
      text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", quoted(name), number_text(factor));
    return text.empty() ? "{}" : "{ " + text + " }";
  }
  const std::string& value = *std::get<std::string*>(key.target);
  return key.boolean_words && (value == "true" || value == "false") ? value : quoted(value);
}

bool stands_for_preset(const Key& key) {
  const std::string value = value_text(key);
  return value == "0" || value == "0.0" || value == "\"preset\"";
}

std::string number_text(double value) {
  std::string shortest = fmt::format("{}", value);
  const bool whole = std::isfinite(value) && shortest.find_first_of(".e") == std::string::npos;
  return whole ? shortest + ".0" : shortest;
}

std::string closest(std::string_view name, const std::vector<std::string>& known) {
  std::string best;
  const std::size_t leaf_length = name.size() - std::min(name.size(), name.find('.') + 1);
  std::size_t best_edits = std::max<std::size_t>(2, leaf_length / 3) + 1;
  for (const std::string& candidate : known) {
    // Levenshtein's distance, one row at a time.
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= name.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i;
      for (std::size_t j = 1; j < row.size(); ++j) {
        const std::size_t replaced = diagonal + (name[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
      }
    }
    if (row.back() < best_edits) {
      best_edits = row.back();
      best = candidate;
    }
  }
  return best;
}

std::int64_t parse_bytes(std::string_view text) {
  std::size_t used = 0;
  double value = 0.0;
  try {
    value = std::stod(std::string(text), &used);
  } catch (const std::exception&) {
    return -1;
  }
  while (used < text.size() && text[used] == ' ') ++used;
  const auto unit = std::ranges::find(kUnits, text.substr(used), &Unit::name);
  const double factor = unit != kUnits.end() ? unit->bytes : used == text.size() ? 1.0 : 0.0;
  const double bytes = value * factor;
  if (factor == 0.0 || !(bytes >= 0.0) || bytes > kMostExact) return -1;
  return static_cast<std::int64_t>(bytes);
}

std::optional<std::vector<int>> parse_integers(std::string_view text) {
  std::vector<int> integers;
  for (const char *at = text.data(), *end = at + text.size(); at != end;) {
    int integer = 0;
    const auto [next, error] = std::from_chars(at, end, integer);
    if (error != std::errc() || (next != end && *next != ',')) return std::nullopt;
    integers.push_back(integer);
    at = next == end ? end : next + 1;
  }
  return integers;
}

namespace {

std::string_view introduction() {
  return R"(# Configuration

A run is described by one TOML file. Every key has a default, so a file names only what it changes; `data.train`
is the one that training needs. On the command line, `--set section.key=value` changes a key after the file is
read; text needs no quotes there. `--ranks N` then makes the world one of N ranks: `mesh.shard` becomes
N / (`mesh.pipeline` × `mesh.replicate`), and is refused where that is no whole number.

An unknown key, a value of the wrong type or outside its range, and values that do not go together are refused
before anything is opened, with the key, the value and what is allowed. Where a message names keys that you did not
write, it ends with where their values came from: `(from preset gpt2-tiny: model.channels; by default: run.length)`.
The `config.json` of `model.weights` is read before that, since it gives keys of [model].

This page is printed by `tessera config`; a test compares the two.
)";
}

std::string section_title(const std::string& section) {
  for (const auto& [name, title] :
       {std::pair<const char*, const char*>{"model", "What is trained."},
        {"lora", "Adapters of low rank, which are trained in place of the weights (docs/tool.md)."},
        {"data",
         "What it is trained on. A token file has a header of 256 32-bit integers: magic, version and the "
         "count of "
         "tokens, which follow it; the magic is 20240520 and the version 1 for 16-bit tokens, 20240801 and 7 "
         "for "
         "32-bit ones."},
        {"mesh", "How the ranks are arranged; their number is the product."},
        {"strategy", "What is sharded, and when it is gathered and reduced (docs/memory.md)."},
        {"numerics", "In which order gradients are added up (docs/numerics.md)."},
        {"pipeline", "How the chain of units is cut over pipeline ranks, and in which order these run it."},
        {"offload", "What lies elsewhere than on the device between its uses (docs/memory.md)."},
        {"precision", "Types, and loss scaling."},
        {"optimizer", "How a gradient changes the weights."},
        {"schedule", "The learning rate over the steps."},
        {"run", "How long, how much at a time, and what is written."}})
    if (section == name) return title;
  return "";
}

}  // namespace

std::string to_toml(const Config& config) {
  Config copy = config;
  std::string text, section;
  for (const Key& key : keys_of(copy)) {
    if (key.section() != section) {
      text += fmt::format("{}[{}]\n", section.empty() ? "" : "\n", key.section());
      section = key.section();
    }
    text += fmt::format("{} = {}\n", key.leaf(), value_text(key));
  }
  return text;
}

std::vector<std::string> differences(const Config& before, const Config& after) {
  Config left = before, right = after;
  const std::vector<Key> old_keys = keys_of(left), new_keys = keys_of(right);
  std::vector<std::string> result;
  for (std::size_t i = 0; i < old_keys.size(); ++i) {
    const std::string was = value_text(old_keys[i]), is = value_text(new_keys[i]);
    if (was != is) result.push_back(fmt::format("{}: {} -> {}", old_keys[i].name, was, is));
  }
  return result;
}

std::string config_markdown() {
  Config defaults;
  std::string text(introduction()), section;
  for (const Key& key : keys_of(defaults)) {
    if (key.section() != section) {
      section = key.section();
      text += fmt::format("\n## [{}]\n\n{}\n\n| key | default | allowed | meaning |\n|---|---|---|---|\n",
                          section, section_title(section));
    }
    text +=
        fmt::format("| `{}` | `{}` | {} | {} |\n", key.leaf(), value_text(key), allowed(key), key.meaning);
  }
  return text;
}

}  // namespace tessera::cli
