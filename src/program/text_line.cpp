#include "src/program/text_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "tessera/error.h"

namespace tessera {
namespace {

constexpr std::size_t kMostShown = 60;  // bytes of what was found

// Bytes of the quoted name that `text` begins with; all of it where no quote ends it.
std::size_t quoted_bytes(std::string_view text) {
  for (std::size_t at = 1; at < text.size(); ++at) {
    if (text[at] == '\'') return at + 1;
    if (text[at] == '\\') ++at;
  }
  return text.size();
}

int hexadecimal(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

// The character behind a backslash at the start of `text`, and how many bytes stand for it: 0 for none.
std::pair<char, std::size_t> unescape(std::string_view text) {
  if (text.size() >= 2 && (text[1] == '\'' || text[1] == '\\')) return {text[1], 2};
  if (text.size() < 4 || text[1] != 'x') return {0, 0};
  const int high = hexadecimal(text[2]), low = hexadecimal(text[3]);
  if (high < 0 || low < 0) return {0, 0};
  return {static_cast<char>(high * 16 + low), 4};
}

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || at != end || text.empty()) return std::nullopt;
  return value;
}

}  // namespace

std::string_view TextLine::next() const {
  if (rest_.empty()) return {};
  if (rest_.front() == '\'') return rest_.substr(0, quoted_bytes(rest_));
  if (rest_.front() == ':' || rest_.front() == ',') return rest_.substr(0, 1);
  return rest_.substr(0, rest_.find_first_of(" :,"));
}

void TextLine::read(std::size_t bytes) {
  rest_.remove_prefix(bytes);
  skip_spaces();
}

void TextLine::skip_spaces() { rest_.remove_prefix(std::min(rest_.find_first_not_of(' '), rest_.size())); }

bool TextLine::skip(std::string_view word) {
  if (next() != word || word.empty()) return false;
  read(word.size());
  return true;
}

void TextLine::expect(std::string_view word) {
  if (!skip(word)) refuse(fmt::format("'{}' is needed", word));
}

void TextLine::expect_end() {
  if (!at_end()) refuse("the line should end here, or a field is at the wrong place");
}

template <std::integral Number>
Number TextLine::number() {
  const std::optional<Number> value = number_in<Number>(next());
  if (!value) refuse("a whole number is needed");
  read(next().size());
  return *value;
}
template int TextLine::number();
template std::int64_t TextLine::number();

int TextLine::instruction() {
  const std::optional<int> id = at_instruction() ? number_in<int>(next().substr(1)) : std::nullopt;
  if (!id) refuse("the number of an instruction is needed, as #12");
  read(next().size());
  return *id;
}

Lifetime TextLine::lifetime() {
  const std::string_view word = next();
  const std::size_t dash = word.find("-#");
  const auto number = [&](std::string_view text) {
    return text.starts_with('#') ? number_in<int>(text.substr(1)) : std::nullopt;
  };
  const std::optional<int> first = number(word.substr(0, dash));
  const std::optional<int> last =
      dash == std::string_view::npos ? std::nullopt : number(word.substr(dash + 1));
  if (!first || !last) refuse("a lifetime is needed, as #12-#15");
  read(word.size());
  return {*first, *last};
}

int TextLine::id() {
  const std::optional<int> id = number_in<int>(next().substr(std::min<std::size_t>(1, next().size())));
  if (!id) refuse("a whole number is needed behind @");
  read(next().size());
  return *id;
}

std::string TextLine::name() {
  const std::string_view word = next();
  if (!word.starts_with('\'')) refuse("a name is needed, between single quotes");
  std::string text;
  std::size_t at = 1;
  while (at < word.size() && word[at] != '\'') {
    if (word[at] != '\\') {
      text += word[at++];
      continue;
    }
    const auto [character, bytes] = unescape(word.substr(at));
    if (bytes == 0) refuse(word.substr(at, 4), "a backslash stands before ' or \\, or as \\x0a");
    text += character;
    at += bytes;
  }
  if (at >= word.size()) refuse("a single quote must end the name");
  read(word.size());
  return text;
}

Spread TextLine::spread() {
  const std::optional<Spread> spread = spread_in(next());
  if (!spread) refuse("a spread is needed: all, shard or shard+replicate, say");
  read(next().size());
  return *spread;
}

void TextLine::refuse(std::string_view needed) const { refuse(next(), needed); }

void TextLine::refuse(std::string_view found, std::string_view needed) const {
  const std::string shown = found.empty() ? "the line ends"
                                          : "found " + quoted(found.substr(0, kMostShown)) +
                                                (found.size() > kMostShown ? " …" : "");
  throw UsageError(fmt::format("program text, line {}: {}; {}", number_, shown, needed));
}

}  // namespace tessera
