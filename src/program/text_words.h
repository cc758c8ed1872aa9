// The words of a program's text, the same for printing and parsing: enumerators, quoted names, spreads, and
// how units and buffers are referred to.
#pragma once

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
template <class Enum>
inline constexpr int kEnumerators = 0;
template <class Enum>
inline constexpr std::string_view kEnumeration = "";
template <>
inline constexpr int kEnumerators<StepKind> = 3;
template <>
inline constexpr int kEnumerators<Axis> = kGroups;
template <>
inline constexpr int kEnumerators<Lane> = kLanes;
template <>
inline constexpr int kEnumerators<Category> = kCategories;
template <>
inline constexpr int kEnumerators<Space> = kSpaces;
template <>
inline constexpr int kEnumerators<BufferRole> = kBufferRoles;
template <>
inline constexpr int kEnumerators<DType> = 3;
template <>
inline constexpr int kEnumerators<Opcode> = kOpcodes;
template <>
inline constexpr int kEnumerators<Pass> = 3;
template <>
inline constexpr int kEnumerators<UseEdge> = 3;
template <>
inline constexpr int kEnumerators<Role> = kRoles;
template <>
inline constexpr int kEnumerators<Access> = 4;
template <>
inline constexpr int kEnumerators<Region::Kind> = 5;
template <>
inline constexpr int kEnumerators<Granule::Kind> = 3;
template <>
inline constexpr std::string_view kEnumeration<StepKind> = "kind of program";
template <>
inline constexpr std::string_view kEnumeration<Axis> = "axis";
template <>
inline constexpr std::string_view kEnumeration<Lane> = "lane";
template <>
inline constexpr std::string_view kEnumeration<Category> = "category";
template <>
inline constexpr std::string_view kEnumeration<Space> = "space";
template <>
inline constexpr std::string_view kEnumeration<BufferRole> = "role of a buffer";
template <>
inline constexpr std::string_view kEnumeration<DType> = "type";
template <>
inline constexpr std::string_view kEnumeration<Opcode> = "opcode";
template <>
inline constexpr std::string_view kEnumeration<Pass> = "pass";
template <>
inline constexpr std::string_view kEnumeration<UseEdge> = "edge of a use";
template <>
inline constexpr std::string_view kEnumeration<Role> = "role of an operand";
template <>
inline constexpr std::string_view kEnumeration<Access> = "access";
template <>
inline constexpr std::string_view kEnumeration<Region::Kind> = "kind of region";
template <>
inline constexpr std::string_view kEnumeration<Granule::Kind> = "granule";

// Whether a region of that kind is of a flat, so that it has elements of a type.
constexpr bool is_of_flat(Region::Kind kind) {
  return kind != Region::Kind::all && kind != Region::Kind::pair;
}

// An enumerator's name, with "_" for spaces; and whether it is this.
std::string as_word(std::string_view name);
bool is_word(std::string_view word, std::string_view name);
[[noreturn]] void refuse_enumerator(std::string_view what, int value, int count);

// UsageError for a value that is no enumerator.
template <class Enum>
std::string word_of(Enum value) {
  const int number = static_cast<int>(value);
  if (number < 0 || number >= kEnumerators<Enum>)
    refuse_enumerator(kEnumeration<Enum>, number, kEnumerators<Enum>);
  return as_word(name_of(value));
}

// Nothing where no enumerator has that word.
template <class Enum>
std::optional<Enum> enumerator_of(std::string_view word) {
  for (int number = 0; number < kEnumerators<Enum>; ++number)
    if (is_word(word, name_of(static_cast<Enum>(number)))) return static_cast<Enum>(number);
  return std::nullopt;
}

// "a, b or c", of all enumerators.
template <class Enum>
std::string all_words() {
  std::string text;
  for (int number = 0; number < kEnumerators<Enum>; ++number) {
    if (number > 0) text += number + 1 < kEnumerators<Enum> ? ", " : " or ";
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
  int count() const { return count_; }
  // −1 where none has that name.
  int find(const std::string& name) const {
    const auto found = first_.find(name);
    return found == first_.end() ? -1 : found->second;
  }
  // `names[id]` is the name of each.
  template <class List, class NameOf>
  std::string text(int id, const List& list, NameOf name) const {
    if (id >= 0 && id < count_ && find(name(list[id])) == id) return quoted(name(list[id]));
    return "@" + std::to_string(id);
  }

 private:
  std::map<std::string, int> first_;
  int count_ = 0;
};

}  // namespace tessera
