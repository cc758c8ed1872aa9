#include "src/layout/utf8.h"

namespace tessera {

std::size_t utf8_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  const std::size_t bytes = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (bytes == 1) return 1;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return 0;
  // The second byte leaves out what is longer than it need be, surrogates, and what is above U+10FFFF.
  const unsigned least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  const auto second = static_cast<unsigned char>(text[1]);
  if (second < least || second > most) return 0;
  for (std::size_t i = 2; i < bytes; ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0U) != 0x80U) return 0;
  return bytes;
}

}  // namespace tessera
