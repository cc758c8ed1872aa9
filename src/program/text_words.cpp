#include "src/program/text_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "src/layout/utf8.h"
#include "tessera/error.h"

namespace tessera {
namespace {

// The order in which a spread's cuts lie inside each other, then what flats are not cut by.
constexpr Axis kCutOrder[] = {Axis::pipeline, Axis::shard, Axis::replicate, Axis::tensor, Axis::world};

bool is_plain(std::string_view character) {
  const auto first = static_cast<unsigned char>(character.front());
  return first >= 0x20 && first != 0x7f && first != '\'' && first != '\\';
}

std::optional<AxisSet> axes_in(std::string_view word) {
  AxisSet axes;
  if (word == "all") return axes;
  for (std::size_t begin = 0; begin <= word.size();) {
    const std::size_t end = std::min(word.find('+', begin), word.size());
    const std::optional<Axis> axis = enumerator_of<Axis>(word.substr(begin, end - begin));
    if (!axis) return std::nullopt;
    axes = axes.with(*axis);
    begin = end + 1;
  }
  return axes;
}

// "block(64)"
std::optional<Granule> granule_in(std::string_view word) {
  const std::size_t open = word.find('(');
  if (open == std::string_view::npos || word.back() != ')') return std::nullopt;
  const std::optional<Granule::Kind> kind = enumerator_of<Granule::Kind>(word.substr(0, open));
  if (!kind) return std::nullopt;
  Granule granule{.kind = *kind};
  const char* const end = word.data() + word.size() - 1;
  const auto [at, error] = std::from_chars(word.data() + open + 1, end, granule.numel);
  if (error != std::errc{} || at != end) return std::nullopt;
  return granule;
}

}  // namespace

std::string_view name_of(UseEdge edge) {
  constexpr std::string_view kNames[] = {"whole", "open", "close"};
  return kNames[static_cast<int>(edge)];
}

std::string_view name_of(Granule::Kind kind) {
  constexpr std::string_view kNames[] = {"element", "block", "parameter"};
  return kNames[static_cast<int>(kind)];
}

std::string as_word(std::string_view name) {
  std::string word(name);
  std::ranges::replace(word, ' ', '_');
  return word;
}

bool is_word(std::string_view word, std::string_view name) {
  return std::ranges::equal(word, name, [](char a, char b) { return a == (b == ' ' ? '_' : b); });
}

void refuse_enumerator(const Enumeration& of, int value) {
  throw UsageError(fmt::format("a program cannot be printed: a {} in it has the value {}; 0 to {} are known",
                               of.name, value, of.count - 1));
}

std::string quoted(std::string_view text) {
  std::string result = "'";
  while (!text.empty()) {
    const std::size_t bytes = utf8_bytes(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(bytes, 1));
    if (bytes > 0 && is_plain(character)) {
      result += character;
    } else if (character == "'" || character == "\\") {
      result += fmt::format("\\{}", character);
    } else {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(character.front()));
    }
    text.remove_prefix(character.size());
  }
  return result + "'";
}

std::string text_of(const Spread& spread) {
  std::string text;
  for (const Axis axis : kCutOrder)
    if (spread.axes.contains(axis)) text += fmt::format("{}{}", text.empty() ? "" : "+", name_of(axis));
  if (text.empty()) text = "all";
  if (spread.granule != Granule{})
    text += fmt::format("/{}({})", word_of(spread.granule.kind), spread.granule.numel);
  return text;
}

std::optional<Spread> spread_in(std::string_view word) {
  const std::size_t cut = std::min(word.find('/'), word.size());
  const std::optional<AxisSet> axes = axes_in(word.substr(0, cut));
  if (!axes) return std::nullopt;
  if (cut == word.size()) return Spread{.axes = *axes};
  const std::optional<Granule> granule = granule_in(word.substr(cut + 1));
  if (!granule) return std::nullopt;
  return Spread{.axes = *axes, .granule = *granule};
}

}  // namespace tessera
