// The words of a program's text, the same for printing and parsing: enumerators, quoted names, spreads, and
// how units and buffers are referred to.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/program.h"

namespace tessera {

std::string_view name_of(UseEdge edge);
std::string_view name_of(Granule::Kind kind);

// How many enumerators there are, and what one is called in messages.
struct Enumeration {
  int count;
  std::string_view name;
};
constexpr Enumeration enumeration_of(StepKind) { return {3, "kind of program"}; }
constexpr Enumeration enumeration_of(Axis) { return {kGroups, "axis"}; }
constexpr Enumeration enumeration_of(Lane) { return {kLanes, "lane"}; }
constexpr Enumeration enumeration_of(Category) { return {kCategories, "category"}; }
constexpr Enumeration enumeration_of(Space) { return {kSpaces, "space"}; }
constexpr Enumeration enumeration_of(BufferRole) { return {kBufferRoles, "role of a buffer"}; }
constexpr Enumeration enumeration_of(DType) { return {3, "type"}; }
constexpr Enumeration enumeration_of(Opcode) { return {kOpcodes, "opcode"}; }
constexpr Enumeration enumeration_of(Pass) { return {kPasses, "pass"}; }
constexpr Enumeration enumeration_of(UseEdge) { return {3, "edge of a use"}; }
constexpr Enumeration enumeration_of(Role) { return {kRoles, "role of an operand"}; }
constexpr Enumeration enumeration_of(Access) { return {4, "access"}; }
constexpr Enumeration enumeration_of(Region::Kind) { return {6, "kind of region"}; }
constexpr Enumeration enumeration_of(Granule::Kind) { return {3, "granule"}; }

template <class Enum>
inline constexpr Enumeration kEnumeration = enumeration_of(Enum{});

// Whether a region of that kind is of a flat, so that it has elements of a type.

// An enumerator's name, with "_" for spaces; and whether it is this.
std::string as_word(std::string_view name);
bool is_word(std::string_view word, std::string_view name);
[[noreturn]] void refuse_enumerator(const Enumeration& of, int value);

// UsageError for a value that is no enumerator.
template <class Enum>
std::string word_of(Enum value) {
  const int number = static_cast<int>(value);
  if (number < 0 || number >= kEnumeration<Enum>.count) refuse_enumerator(kEnumeration<Enum>, number);
  return as_word(name_of(value));
}

// Nothing where no enumerator has that word.
template <class Enum>
std::optional<Enum> enumerator_of(std::string_view word) {
  for (int number = 0; number < kEnumeration<Enum>.count; ++number)
    if (is_word(word, name_of(static_cast<Enum>(number)))) return static_cast<Enum>(number);
  return std::nullopt;
}

// "a, b or c", of all enumerators.
template <class Enum>
std::string all_words() {
  std::string text;
  for (int number = 0; number < kEnumeration<Enum>.count; ++number) {
    if (number > 0) text += number + 1 < kEnumeration<Enum>.count ? ", " : " or ";
    text += word_of(static_cast<Enum>(number));
  }
  return text;
}

// Between single quotes; what must be is escaped.
std::string quoted(std::string_view text);

std::string text_of(const Spread& spread);
// Nothing where it is none.
std::optional<Spread> spread_in(std::string_view word);

// How units, and buffers, are referred to: by name, or by id where another has the name before or there is
// none of that id.
class References {
 public:
  void add(const std::string& name) { first_.try_emplace(name, count_++); }
  // −1 where none has that name.
  int find(const std::string& name) const {
    const auto found = first_.find(name);
    return found == first_.end() ? -1 : found->second;
  }
  // `list` has those that were added, by id; `name` gives the name of one.
  template <class List, class NameOf>
  std::string text(int id, const List& list, NameOf name) const {
    if (id >= 0 && id < count_ && find(name(list[id])) == id) return quoted(name(list[id]));
    return fmt::format("@{}", id);
  }

 private:
  std::map<std::string, int> first_;
  int count_ = 0;
};

}  // namespace tessera
