// Sets of Unicode code points, and those of general categories in Unicode 16.0. Knows nothing of text
// encodings.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tessera::text {

inline constexpr char32_t kCodePoints = 0x110000;  // number of code points

// Code points [begin, end).
struct CodePointRange {
  char32_t begin = 0;
  char32_t end = 0;
  bool operator==(const CodePointRange&) const = default;
};

class CodePointSet {
 public:
  CodePointSet() = default;
  // The ranges may overlap, in any order.
  explicit CodePointSet(std::vector<CodePointRange> ranges);
  static CodePointSet of(char32_t code_point) { return CodePointSet({{code_point, code_point + 1}}); }

  const std::vector<CodePointRange>& ranges() const { return ranges_; }  // sorted; a gap between any two
  bool contains(char32_t code_point) const;
  CodePointSet complement() const;
  CodePointSet united(const CodePointSet& other) const;
  CodePointSet intersected(const CodePointSet& other) const;
  // The set with the characters that differ from its own in case only. "S" gives "S", "s" and "ſ".
  CodePointSet with_other_cases() const;
  bool operator==(const CodePointSet&) const = default;

 private:
  std::vector<CodePointRange> ranges_;
};

// A general category ("Lu") or a group of them ("L"). Empty for any other name.
std::optional<CodePointSet> category_set(std::string_view name);
// White_Space: what \s matches.
const CodePointSet& space_set();
// What \w matches in patterns of tokenizers, by the rules of Oniguruma.
const CodePointSet& pattern_word_set();
// What \w matches in Rust's regex crate. It decides where a word ends beside a token that is a "single word".
const CodePointSet& rust_word_set();

}  // namespace tessera::text
