#include "src/text/utf8_text.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "src/layout/utf8.h"

namespace tessera::text {

namespace {

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80U; }

// The number of leading bytes that are ASCII.
std::size_t ascii_bytes(std::string_view text) {
  std::size_t i = 0;
  for (std::uint64_t word = 0; i + sizeof word <= text.size(); i += sizeof word) {
    std::memcpy(&word, text.data() + i, sizeof word);
    if ((word & 0x8080808080808080U) != 0) break;
  }
  while (i < text.size() && static_cast<unsigned char>(text[i]) < 0x80) ++i;
  return i;
}

// The number of leading bytes that are UTF-8.
std::size_t well_formed_bytes(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    i += ascii_bytes(text.substr(i));
    if (i == text.size()) break;
    const std::size_t bytes = utf8_bytes(text.substr(i));
    if (bytes == 0) break;
    i += bytes;
  }
  return i;
}

// The bytes of the broken part at the start of `text`: a start of a character as long as it could still
// become one, else one byte.
std::size_t broken_bytes(std::string_view text) {
  const std::size_t whole = std::max<std::size_t>(character_bytes(text[0]), 1);
  std::size_t length = 1;
  for (; length < std::min(whole, text.size()) && is_continuation(text[length]); ++length) {
    std::string completed(text.substr(0, length + 1));
    completed.resize(whole, '\x80');
    if (utf8_bytes(completed) == 0) break;
  }
  return length;
}

}  // namespace

bool is_utf8(std::string_view text) { return well_formed_bytes(text) == text.size(); }

void append_utf8(std::string_view bytes, std::string& text) {
  while (!bytes.empty()) {
    const std::size_t good = well_formed_bytes(bytes);
    text.append(bytes.substr(0, good));
    bytes.remove_prefix(good);
    if (bytes.empty()) return;
    text.append("\ufffd");
    bytes.remove_prefix(broken_bytes(bytes));
  }
}

char32_t last_code_point(std::string_view text) {
  std::size_t begin = text.size() - 1;
  while (begin > 0 && is_continuation(text[begin])) --begin;
  return first_code_point(text.substr(begin));
}

void append_code_point(char32_t code_point, std::string& text) {
  const auto add = [&](char32_t bits) { text.push_back(static_cast<char>(bits)); };
  const auto more = [&](unsigned shift) { add(0x80U | (code_point >> shift & 0x3fU)); };
  if (code_point < 0x80) return add(code_point);
  if (code_point < 0x800) {
    add(0xc0U | code_point >> 6U);
  } else if (code_point < 0x10000) {
    add(0xe0U | code_point >> 12U);
    more(6);
  } else {
    add(0xf0U | code_point >> 18U);
    more(12);
    more(6);
  }
  more(0);
}

}  // namespace tessera::text
