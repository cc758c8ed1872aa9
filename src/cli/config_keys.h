// The table of configuration keys, bound to the fields of one Config. Knows neither TOML nor files.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "src/cli/config.h"

namespace tessera::cli {

inline constexpr double kMostInt = 2147483647.0;
inline constexpr double kMostExact = 9007199254740992.0;  // 2^53: every integer up to here is a double

// The limit of layers times microbatches in a step. Each is planned; this many take minutes and some GiB.
inline constexpr std::int64_t kMostPlannedBlocks = 1'000'000;
// The limit of layers, and of microbatches. Each is planned; many more would take minutes, and much memory.
inline constexpr std::int64_t kMostPlanned = 100'000;
inline constexpr std::int64_t kMostBlocks = 1 << 16;
constexpr std::int64_t most_microbatches(std::int64_t layers) {
  return std::min(kMostPlanned, kMostPlannedBlocks / layers);
}

enum class KeyKind : std::uint8_t {
  text,
  integer,
  number,
  boolean,
  bytes,
  texts,   // a list of texts; one text is a list of those between its commas
  factors  // numbers by text, a table; "a=0.1,b=0.5" is one, too
};

struct Key {
  std::string name;  // "section.key"
  KeyKind kind = KeyKind::text;
  std::variant<std::string*, std::int64_t*, double*, bool*, std::vector<std::string>*,
               std::vector<std::pair<std::string, double>>*>
      target;
  std::string meaning;  // with the unit; one sentence or two
  std::vector<std::string> words =
      {};  // text: the only allowed values. integer, number: "auto", if that is allowed
  double min = std::numeric_limits<double>::lowest();
  double max = std::numeric_limits<double>::max();
  bool above_min = false;      // min itself is not allowed
  bool or_zero = false;        // 0 is also allowed, below any min; it stands for another value
  bool power_of_two = false;   // only powers of two are allowed
  bool boolean_words = false;  // text: true and false may stand without quotes

  std::string section() const { return name.substr(0, name.find('.')); }
  std::string leaf() const { return name.substr(name.find('.') + 1); }
  bool takes_auto() const { return (kind == KeyKind::integer || kind == KeyKind::number) && !words.empty(); }
};

// All keys, section by section, in the order of the documentation. Their pointers point into `config`.
std::vector<Key> keys_of(Config& config);

// The model.family that a preset belongs to. Each belongs to one.
std::string family_of(const std::string& preset);
std::string smallest_preset(const std::string& family);

// The names of the fields of all optimizers' options, each once: beta1, ... The key of beta1 is
// "optimizer.beta1".
std::vector<std::string> optimizer_fields();
// The optimizers whose options have this field.
std::vector<std::string_view> optimizers_with(std::string_view field);

// Gives a key the value of another of its kind.
void assign(const Key& from, const Key& to);

// What a value of this key may be: "an integer of at least 1".
std::string allowed(const Key& key);

// The key's present value as TOML writes it.
std::string value_text(const Key& key);

// Whether the key's present value is the one, 0 or "preset", that stands for the preset's.
bool stands_for_preset(const Key& key);

// As TOML writes a number, with the fewest digits that read back as the same value.
std::string number_text(double value);

// The known name nearest to `name` by edit distance; empty if none is near.
std::string closest(std::string_view name, const std::vector<std::string>& known);

// The bytes that a text such as "4 GiB", "512MiB", "2 GB", "1e9" or "123456" means; −1 for any other text.
std::int64_t parse_bytes(std::string_view text);

// Parses integers separated by commas, such as "5,9"; a comma may end the text. Nothing for any other text.
std::optional<std::vector<int>> parse_integers(std::string_view text);

}  // namespace tessera::cli
