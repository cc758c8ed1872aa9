// GPT-2's characters for bytes: a byte-level vocabulary writes each byte as a printable character.
// See bytes_to_unicode() in https://github.com/openai/gpt-2/blob/master/src/encoder.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::text {

char32_t character_of_byte(std::uint8_t byte);
// Empty for a character that stands for no byte.
std::optional<std::uint8_t> byte_of_character(char32_t code_point);

std::string characters_of_bytes(std::string_view bytes);
// Empty if a character stands for no byte. `text` must be UTF-8.
std::optional<std::string> bytes_of_characters(std::string_view text);

}  // namespace tessera::text
