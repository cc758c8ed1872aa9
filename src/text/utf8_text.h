// Reads and repairs UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::text {

bool is_utf8(std::string_view text);

// Appends `bytes` to `text`. Each part that is not UTF-8 becomes U+FFFD, as in Python's
// bytes.decode("utf-8", "replace"): one for each longest start of a character that is cut short, and one for
// each other byte.
void append_utf8(std::string_view bytes, std::string& text);

// The bytes of the character that begins with `first`. The text must be UTF-8.
inline std::size_t character_bytes(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

// The first character of `text`, which must be UTF-8 and not empty.
inline char32_t first_code_point(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto more = [&](std::size_t i) { return byte(i) & 0x3fU; };
  switch (character_bytes(text[0])) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1fU) << 6U | more(1);
    case 3:
      return (byte(0) & 0x0fU) << 12U | more(1) << 6U | more(2);
    default:
      return (byte(0) & 0x07U) << 18U | more(1) << 12U | more(2) << 6U | more(3);
  }
}

// The last character of `text`, which must be UTF-8 and not empty.
char32_t last_code_point(std::string_view text);

void append_code_point(char32_t code_point, std::string& text);

}  // namespace tessera::text
