#include "src/text/byte_characters.h"

#include <array>

#include "src/text/utf8_text.h"

namespace tessera::text {

namespace {

constexpr char32_t kFirstSubstitute = 0x100;
constexpr char32_t kSubstitutes = 68;  // bytes that are not printable

constexpr bool is_printable(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
}

struct Tables {
  std::array<char32_t, 256> characters = {};
  std::array<std::uint8_t, kSubstitutes> bytes = {};
};

constexpr Tables kTables = [] {
  Tables tables;
  char32_t next = kFirstSubstitute;
  for (unsigned byte = 0; byte < 256; ++byte) {
    tables.characters[byte] = is_printable(byte) ? byte : next;
    if (!is_printable(byte)) tables.bytes[next++ - kFirstSubstitute] = static_cast<std::uint8_t>(byte);
  }
  return tables;
}();

}  // namespace

char32_t character_of_byte(std::uint8_t byte) { return kTables.characters[byte]; }

std::optional<std::uint8_t> byte_of_character(char32_t code_point) {
  if (code_point < 256)
    return is_printable(code_point) ? std::optional(static_cast<std::uint8_t>(code_point)) : std::nullopt;
  if (code_point >= kFirstSubstitute + kSubstitutes) return std::nullopt;
  return kTables.bytes[code_point - kFirstSubstitute];
}

std::string characters_of_bytes(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) append_code_point(character_of_byte(static_cast<std::uint8_t>(byte)), text);
  return text;
}

std::optional<std::string> bytes_of_characters(std::string_view text) {
  std::string bytes;
  for (; !text.empty(); text.remove_prefix(character_bytes(text[0]))) {
    const std::optional<std::uint8_t> byte = byte_of_character(first_code_point(text));
    if (!byte) return std::nullopt;
    bytes.push_back(static_cast<char>(*byte));
  }
  return bytes;
}

}  // namespace tessera::text
