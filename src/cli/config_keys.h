// The table of configuration keys, bound to the fields of one Config. Knows neither TOML nor files.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/cli/config.h"

namespace tessera::cli {

inline constexpr double kMostInt = 2147483647.0;
inline constexpr double kMostExact = 9007199254740992.0;  // 2^53: every integer up to here is a double

// Of a step, layers times microbatches: each is planned, and so many in minutes and some GiB.
inline constexpr std::int64_t kMostPlannedBlocks = 1'000'000;
// Of layers, and of microbatches: each is planned, and many more would take minutes, and memory that nobody
// asked for.
inline constexpr std::int64_t kMostPlanned = 100'000;
constexpr std::int64_t most_microbatches(std::int64_t layers) {
  return std::min(kMostPlanned, kMostPlannedBlocks / layers);
}

enum class KeyKind : std::uint8_t { text, integer, number, boolean, bytes };

struct Key {
  std::string name;  // "section.key"
  KeyKind kind = KeyKind::text;
  std::variant<std::string*, std::int64_t*, double*, bool*> target;
  std::string meaning;  // with the unit; one sentence or two
  std::vector<std::string> words =
      {};  // text: the only values. integer, number: "auto" where it stands for kAuto
  double min = std::numeric_limits<double>::lowest();
  double max = std::numeric_limits<double>::max();
  bool above_min = false;      // min itself is not allowed
  bool or_zero = false;        // 0 stands for another value, whatever min is
  bool power_of_two = false;   // and nothing between
  bool boolean_words = false;  // text: true and false may stand without quotes

  std::string section() const { return name.substr(0, name.find('.')); }
  std::string leaf() const { return name.substr(name.find('.') + 1); }
  bool takes_auto() const { return (kind == KeyKind::integer || kind == KeyKind::number) && !words.empty(); }
};

// All keys, sections together, in the order of the documentation. Pointers are into `config`.
std::vector<Key> keys_of(Config& config);

// The model.family that has a preset: each is of one.
std::string family_of(const std::string& preset);

// The fields that any optimizer's options have, each once: beta1, ... The key of one is "optimizer.beta1".
std::vector<std::string> optimizer_fields();
// The optimizers whose options have a field.
std::vector<std::string_view> optimizers_with(std::string_view field);

// What a value of this key may be: "an integer of at least 1".
std::string allowed(const Key& key);

// The key's present value as TOML writes it.
std::string value_text(const Key& key);

// As TOML writes it, with as few digits as read back as the same value.
std::string number_text(double value);

// The known name nearest to `name` by edits; empty where none is near.
std::string closest(std::string_view name, const std::vector<std::string>& known);

// "4 GiB", "512MiB", "2 GB", "1e9", "123456": bytes, or −1 where the text is none.
std::int64_t parse_bytes(std::string_view text);

// "5,9": integers separated by commas, one of which may end the text; nothing where it is something else.
std::optional<std::vector<int>> parse_integers(std::string_view text);

}  // namespace tessera::cli
