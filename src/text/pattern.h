// Translates a tokenizer's regular expression into one over bytes that PCRE2 compiles. Does not match text.
//
// Each character of a text becomes one byte, its class. An ASCII character is its own class. Other characters
// share a class if no part of the pattern tells them apart. So PCRE2 needs no Unicode tables, which differ
// between versions, and each part of the pattern becomes a list of bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/unicode.h"

namespace tessera::text {

// The class of each character.
class CharacterClasses {
 public:
  // Throws UsageError if the sets tell more than 128 kinds of characters above ASCII apart.
  explicit CharacterClasses(const std::vector<CodePointSet>& sets);
  // The class of a code point.
  std::uint8_t of(char32_t code_point) const {
    return pages_[static_cast<std::size_t>(page_of_[code_point >> kPageBits]) << kPageBits |
                  (code_point & kPageMask)];
  }
  // The classes of the members of one of the sets.
  std::vector<std::uint8_t> of(const CodePointSet& set) const;

 private:
  static constexpr unsigned kPageBits = 8;
  static constexpr char32_t kPageMask = 0xff;
  void store_pages(const std::vector<std::uint8_t>& classes);

  std::vector<std::uint16_t> page_of_;
  std::vector<std::uint8_t> pages_;  // equal pages are stored once
  std::vector<char32_t> member_;     // a code point of each class
};

struct BytePattern {
  std::string pattern;  // for PCRE2, without UTF and without ignoring case
  CharacterClasses classes;
};

// Understands what patterns of tokenizers use, with the meaning that Oniguruma gives it: literals, groups,
// lookahead and lookbehind, (?i:...), lists of characters with && and nested lists, general categories,
// escapes, anchors and quantifiers. Throws UsageError naming any other part.
BytePattern translate_pattern(std::string_view pattern);

}  // namespace tessera::text
