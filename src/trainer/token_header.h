// Parses and makes the header of token files, of 1024 bytes. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tessera/data.h"

namespace tessera {

inline constexpr std::int64_t kTokenHeaderBytes = 256 * 4;

struct TokenLayout {
  TokenEncoding encoding = TokenEncoding::text;
  std::int64_t offset_bytes = 0;  // of the first token
  std::int64_t numel = 0;
};

// Says what a whole file holds. `name` decides whether a header is required, and appears in messages. Throws
// EnvironmentError as TokenSource::open() does. Never reads outside `file`.
TokenLayout parse_token_file(const std::string& name, std::span<const std::byte> file);

// The header of a file of `numel` tokens; `numel` is below 2^31.
std::array<std::byte, kTokenHeaderBytes> make_token_header(TokenEncoding encoding, std::int64_t numel);

}  // namespace tessera
