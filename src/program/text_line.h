// One line of a program's text, read word by word. Every refusal names the line, what was found and what is
// right. Knows nothing of programs.
#pragma once

#include <concepts>
#include <optional>
#include <string>
#include <string_view>

#include "src/program/text_words.h"

namespace tessera {

class TextLine {
 public:
  TextLine(std::string_view text, int number) : rest_(text), number_(number) { skip_spaces(); }

  bool at_end() const { return rest_.empty(); }
  // The word, quoted name or mark that is next; empty at the end.
  std::string_view next() const;
  // Whether it is this; then it is read.
  bool skip(std::string_view word);
  // UsageError unless it is.
  void expect(std::string_view word);
  void expect_end();

  template <std::integral Number>
  Number number();
  // "#12"
  int instruction();
  // "#12-#15"
  Lifetime lifetime();
  // What stands behind @, which is next.
  int id();
  bool at_instruction() const { return rest_.starts_with('#'); }
  std::string name();
  Spread spread();

  template <class Enum>
  std::optional<Enum> maybe() {
    const std::optional<Enum> found = enumerator_of<Enum>(next());
    if (found) read(next().size());
    return found;
  }
  template <class Enum>
  Enum one() {
    const std::optional<Enum> found = maybe<Enum>();
    if (!found) refuse("the " + std::string(kEnumeration<Enum>.name) + " is needed: " + all_words<Enum>());
    return *found;
  }

  // Names what is next as what was found; the latter where it is another.
  [[noreturn]] void refuse(std::string_view needed) const;
  [[noreturn]] void refuse(std::string_view found, std::string_view needed) const;

 private:
  void read(std::size_t bytes);
  void skip_spaces();

  std::string_view rest_;
  int number_;
};

}  // namespace tessera
