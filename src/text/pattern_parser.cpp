#include "src/text/pattern_parser.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/text/utf8_text.h"
#include "tessera/error.h"

namespace tessera::text {

namespace {

constexpr std::size_t kMostGroups = 200;  // nested
constexpr std::size_t kMostBytes = 1U << 14U;

bool is_letter_or_digit(char32_t c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

}  // namespace

PatternParser::PatternParser(std::string_view pattern) : pattern_(pattern), rest_(pattern) {
  if (!is_utf8(pattern)) throw UsageError("a pattern is not UTF-8");
  read_all();
}

void PatternParser::read_all() {
  if (pattern_.size() > kMostBytes)
    throw UsageError(fmt::format("a pattern of {} bytes; {} are allowed", pattern_.size(), kMostBytes));
  while (!rest_.empty()) read_part();
  close_flags();
  if (!groups_.empty()) refuse("a group that is not closed");
}

// Groups that flags alone opened end with the group around them.
void PatternParser::close_flags() {
  for (; !groups_.empty() && groups_.back().begin == kNone; groups_.pop_back()) add_text(")");
}

void PatternParser::read_part() {
  if (take("(")) return read_group();
  if (take(")")) return close_group();
  if (take("|")) {
    atom_ = kNone;
    return add_text("|");
  }
  if (read_quantifier()) return;
  if (take("\\")) return read_escape();
  if (take("^") || take("$")) {
    const char anchor = rest_.data()[-1];
    atom_ = kNone;
    return add_text(fmt::format("(?m:{})", anchor));  // at every line, as in Oniguruma
  }
  if (take("[")) {
    const CodePointSet set = read_list();
    return add_set(set);
  }
  if (take(".")) {
    const CodePointSet newline = CodePointSet::of('\n');
    return add_set(flags_.dot_matches_newline ? CodePointSet().complement() : newline.complement());
  }
  add_character(take_code_point());
}

void PatternParser::read_group() {
  if (groups_.size() == kMostGroups) refuse("a group in more than 200 others");
  groups_.push_back({.begin = parts_.size(), .outside = flags_});
  atom_ = kNone;
  for (const std::string_view start : {"?:", "?=", "?!", "?<=", "?<!", "?>"})
    if (take(start)) return add_text(fmt::format("({}", start));
  if (take("?#")) {
    while (!rest_.empty() && !at(")")) rest_.remove_prefix(1);
    if (!take(")")) refuse("a comment that is not closed");
    groups_.pop_back();
    return;
  }
  if (take("?")) return read_flags();
  add_text("(?:");
}

// (?i), (?m-i) and (?i:...).
void PatternParser::read_flags() {
  bool on = true;
  for (;; rest_.remove_prefix(1)) {
    if (at("-"))
      on = false;
    else if (at("i"))
      flags_.ignore_case = on;
    else if (at("m"))
      flags_.dot_matches_newline = on;
    else
      break;
  }
  if (take(":")) return add_text("(?:");
  if (!take(")")) refuse("a group that begins with '(?' and");
  // The rest of the enclosing group is one group, so that it keeps its alternatives: a(?i)b|c is a(?i:b|c).
  groups_.back().begin = kNone;
  add_text("(?:");
}

void PatternParser::close_group() {
  close_flags();
  if (groups_.empty()) refuse("a ')' without '('");
  add_text(")");
  atom_ = groups_.back().begin;
  flags_ = groups_.back().outside;
  groups_.pop_back();
}

bool PatternParser::read_quantifier() {
  std::string quantifier;
  bool is_interval = false;
  if (take("*") || take("+") || take("?"))
    quantifier = rest_.data()[-1];
  else if (read_interval(quantifier))
    is_interval = true;
  else
    return false;
  if (atom_ == kNone) refuse("a quantifier that follows nothing");
  if (is_interval && at("?") && quantifier.find(',') == quantifier.npos)
    refuse("a fixed count that '?' follows");
  add_text(std::move(quantifier));
  if (take("?")) {
    add_text("?");
  } else if (take("+")) {
    if (is_interval) {  // not possessive in Oniguruma: it repeats the interval
      parts_.insert(parts_.begin() + static_cast<std::ptrdiff_t>(atom_), {.text = "(?:"});
      add_text(")");
    }
    add_text("+");
  }
  atom_ = kNone;
  return true;
}

// {n}, {n,}, {,m} or {n,m}. Other text after a brace is literal.
bool PatternParser::read_interval(std::string& interval) {
  if (!at("{")) return false;
  const std::size_t end = rest_.find('}');
  if (end == rest_.npos) return false;
  const std::string_view inside = rest_.substr(1, end - 1);
  const std::size_t comma = inside.find(',');
  const std::string_view least = inside.substr(0, comma);
  const std::string_view most = comma == inside.npos ? "" : inside.substr(comma + 1);
  const auto is_number = [](std::string_view text) {
    return text.size() < 5 && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  };
  if (!is_number(least) || !is_number(most) || (least.empty() && most.empty())) return false;
  interval = fmt::format("{{{}{}{}}}", least.empty() ? "0" : least, comma == inside.npos ? "" : ",", most);
  rest_.remove_prefix(end + 1);
  return true;
}

void PatternParser::read_escape() {
  if (rest_.empty()) refuse("a backslash that ends it");
  const char letter = rest_[0];
  rest_.remove_prefix(1);
  if (read_anchor(letter)) return;
  CodePointSet set;
  if (read_class_escape(letter, set)) return add_set(set);
  rest_ = {rest_.data() - 1, rest_.size() + 1};
  add_character(read_character_escape(letter));
}

bool PatternParser::read_anchor(char letter) {
  atom_ = kNone;
  if (letter == 'A' || letter == 'z' || letter == 'Z') {
    add_text({'\\', letter});
    return true;
  }
  if (letter == 'R') {
    const std::size_t begin = parts_.size();
    add_text("(?>\\r\\n|");
    add_set(CodePointSet({{0x0a, 0x0e}, {0x85, 0x86}, {0x2028, 0x202a}}));
    add_text(")");
    atom_ = begin;
    return true;
  }
  if (letter != 'b' && letter != 'B') return false;
  const auto look = [&](const char* ahead) {
    add_text(ahead);
    add_set(pattern_word_set());
    add_text(")");
  };
  const bool is_boundary = letter == 'b';
  add_text("(?:");
  look("(?<=");
  look(is_boundary ? "(?!" : "(?=");
  add_text("|");
  look("(?<!");
  look(is_boundary ? "(?=" : "(?!");
  add_text(")");
  atom_ = kNone;
  return true;
}

bool PatternParser::read_class_escape(char letter, CodePointSet& set) {
  const CodePointSet hex({{'0', '9' + 1}, {'A', 'F' + 1}, {'a', 'f' + 1}});
  switch (letter) {
    case 's':
      set = space_set();
      return true;
    case 'S':
      set = space_set().complement();
      return true;
    case 'd':
      set = *category_set("Nd");
      return true;
    case 'D':
      set = category_set("Nd")->complement();
      return true;
    case 'w':
      set = pattern_word_set();
      return true;
    case 'W':
      set = pattern_word_set().complement();
      return true;
    case 'h':
      set = hex;
      return true;
    case 'H':
      set = hex.complement();
      return true;
    case 'p':
    case 'P':
      set = read_property(letter == 'P');
      return true;
    default:
      return false;
  }
}

CodePointSet PatternParser::read_property(bool negated) {
  if (!take("{")) refuse("a \\p without '{'");
  if (take("^")) negated = !negated;
  const std::size_t end = rest_.find('}');
  if (end == rest_.npos) refuse("a \\p{ that is not closed");
  const std::string_view name = rest_.substr(0, end);
  const std::optional<CodePointSet> set = category_set(name);
  if (!set)
    refuse(
        fmt::format("the property '{}'; general categories such as L, Lu, N and P are supported, and", name));
  rest_.remove_prefix(end + 1);
  return negated ? set->complement() : *set;
}

char32_t PatternParser::read_character_escape(char letter) {
  if (!is_letter_or_digit(static_cast<unsigned char>(letter))) return take_code_point();
  rest_.remove_prefix(1);
  switch (letter) {
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    case 'a':
      return '\a';
    case 'e':
      return 0x1b;
    case 'u':
      return read_hex(4, 4);
    case 'x':
      break;
    default:
      refuse(fmt::format("the escape \\{}", letter));
  }
  if (take("{")) {
    const char32_t code_point = read_hex(1, 6);
    if (!take("}")) refuse("a \\x{ that is not closed");
    return code_point;
  }
  const char32_t code_point = read_hex(1, 2);
  if (code_point >= 0x80) refuse("the escape \\x of a byte above 7f");
  return code_point;
}

char32_t PatternParser::read_hex(std::size_t least, std::size_t most) {
  char32_t value = 0;
  std::size_t digits = 0;
  for (; digits < most && !rest_.empty(); ++digits, rest_.remove_prefix(1)) {
    const std::size_t digit = std::string_view("0123456789abcdef").find(static_cast<char>(rest_[0] | 0x20));
    if (digit == std::string_view::npos || !is_letter_or_digit(static_cast<unsigned char>(rest_[0]))) break;
    value = value << 4U | static_cast<char32_t>(digit);
  }
  if (digits < least || value >= kCodePoints) refuse("an escape without a code point in hexadecimal");
  return value;
}

void PatternParser::add_set(const CodePointSet& set) {
  const auto found = std::ranges::find(sets_, set);
  const auto index = found - sets_.begin();
  if (found == sets_.end()) sets_.push_back(set);
  atom_ = parts_.size();
  parts_.push_back({.set = static_cast<int>(index)});
}

void PatternParser::add_character(char32_t code_point) {
  const CodePointSet set = CodePointSet::of(code_point);
  add_set(flags_.ignore_case ? set.with_other_cases() : set);
}

bool PatternParser::take(std::string_view text) {
  if (!at(text)) return false;
  rest_.remove_prefix(text.size());
  return true;
}

char32_t PatternParser::take_code_point() {
  const char32_t code_point = first_code_point(rest_);
  rest_.remove_prefix(character_bytes(rest_[0]));
  return code_point;
}

void PatternParser::refuse(std::string_view what) const {
  throw UsageError(fmt::format("the pattern '{}' has {} at byte {}, which is not supported", pattern_, what,
                               pattern_.size() - rest_.size()));
}

}  // namespace tessera::text
