// Lists of characters, such as [^\s\p{L}]: the part of the parser that computes sets.
#include <fmt/format.h>

#include "src/text/pattern_parser.h"

namespace tessera::text {

namespace {

constexpr int kMostLists = 100;  // nested

}  // namespace

// The opening bracket is read.
CodePointSet PatternParser::read_list() {
  if (++lists_ > kMostLists) refuse("a list in more than 100 others");
  const bool negated = take("^");
  CodePointSet set, whole = CodePointSet().complement();
  bool intersects = false;
  for (bool first = true; first || !at("]"); first = false) {
    if (rest_.empty()) refuse("a '[' that is not closed");
    if (take("&&")) {
      whole = whole.intersected(set);
      set = {};
      intersects = true;
      continue;
    }
    set = set.united(read_list_item());
  }
  take("]");
  --lists_;
  if (intersects) set = whole.intersected(set);
  if (flags_.ignore_case) set = set.with_other_cases();
  return negated ? set.complement() : set;
}

CodePointSet PatternParser::read_list_item() {
  if (at("[:")) return read_posix_class();
  if (take("[")) return read_list();
  CodePointSet set;
  const auto read_character = [&]() -> char32_t {
    if (!take("\\")) return take_code_point();
    if (rest_.empty()) refuse("a backslash that ends it");
    if (take("b")) return '\b';
    return read_character_escape(rest_[0]);
  };
  if (at("\\") && rest_.size() > 1) {
    const char letter = rest_[1];
    const std::string_view before = rest_;
    rest_.remove_prefix(2);
    if (read_class_escape(letter, set)) return set;
    rest_ = before;
  }
  const char32_t begin = read_character();
  if (!at("-") || at("-]") || at("-[") || rest_.size() < 2) return CodePointSet::of(begin);
  take("-");
  const char32_t last = read_character();
  if (last < begin) refuse("a range that ends before it begins");
  return CodePointSet({{begin, last + 1}});
}

CodePointSet PatternParser::read_posix_class() {
  if (take("[:space:]")) return space_set();
  if (take("[:digit:]")) return *category_set("Nd");
  refuse("a class between '[:' and ':]'");
}

}  // namespace tessera::text
