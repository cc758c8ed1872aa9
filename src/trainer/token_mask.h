// The file beside a token file that says which of its tokens count as targets. Pure, but for its name.
//
// 32 bytes of header: "TSRMASK1", then three 8-byte integers: tokens, how many of them count, and 0. Then a
// bit for each token, from the lowest of a byte on: 1 where it counts. Bits behind the last token are 0.
// Little-endian.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tessera {

inline constexpr std::int64_t kMaskHeaderBytes = 32;

// The name of the mask of a token file: with .mask in place of .bin, or behind any other name.
std::string mask_name(const std::string& token_file);

// Whether a file begins as a mask does.
bool is_token_mask(std::span<const std::byte> file);

// How many of the `numel` tokens of a token file count, by the whole mask. Throws EnvironmentError, naming
// the file, for one that is no mask, or not of so many tokens, or damaged. Never reads outside `file`.
std::int64_t check_token_mask(const std::string& name, std::span<const std::byte> file, std::int64_t numel);

inline bool counts_in(const std::byte* bits, std::int64_t token) {
  return (std::to_integer<unsigned>(bits[token / 8]) >> (token % 8) & 1U) != 0;
}

std::array<std::byte, kMaskHeaderBytes> make_mask_header(std::int64_t numel, std::int64_t counted);

}  // namespace tessera
