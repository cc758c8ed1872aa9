#include "src/trainer/token_mask.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <string_view>

#include "tessera/error.h"

namespace tessera {
namespace {

constexpr std::string_view kMagic = "TSRMASK1";

struct Numbers {
  std::int64_t numel = 0, counted = 0, zero = 0;
};

[[noreturn]] void refuse(const std::string& name, const std::string& problem) {
  throw EnvironmentError(fmt::format("mask '{}' {}", name, problem));
}

}  // namespace

std::string mask_name(const std::string& token_file) {
  constexpr std::string_view kEnd = ".bin";
  const bool ends = token_file.ends_with(kEnd);
  return token_file.substr(0, token_file.size() - (ends ? kEnd.size() : 0)) + ".mask";
}

bool is_token_mask(std::span<const std::byte> file) {
  return file.size() >= kMagic.size() && std::memcmp(file.data(), kMagic.data(), kMagic.size()) == 0;
}

std::int64_t check_token_mask(const std::string& name, std::span<const std::byte> file, std::int64_t numel) {
  if (!is_token_mask(file))
    refuse(name, fmt::format("does not begin with {}, as a mask of tokens does", kMagic));
  if (static_cast<std::int64_t>(file.size()) < kMaskHeaderBytes)
    refuse(name, fmt::format("is truncated: its header takes {} bytes, the file has {}", kMaskHeaderBytes,
                             file.size()));
  Numbers numbers;
  std::memcpy(&numbers, file.data() + kMagic.size(), sizeof numbers);
  if (numbers.numel != numel)
    refuse(name, fmt::format("is of {} tokens, and the token file beside it has {}", numbers.numel, numel));
  const std::int64_t expected = kMaskHeaderBytes + (numel + 7) / 8;
  if (static_cast<std::int64_t>(file.size()) != expected)
    refuse(name, fmt::format("has {} bytes; with {} tokens it takes {}", file.size(), numel, expected));
  const std::span<const std::byte> bits = file.subspan(static_cast<std::size_t>(kMaskHeaderBytes));
  std::int64_t counted = 0;
  for (const std::byte byte : bits) counted += std::popcount(std::to_integer<unsigned>(byte));
  const bool spare = numel % 8 != 0 && (std::to_integer<unsigned>(bits.back()) >> (numel % 8)) != 0;
  if (counted != numbers.counted || spare || numbers.zero != 0)
    refuse(name,
           fmt::format("is damaged: it marks {} tokens, and its header says {}", counted, numbers.counted));
  return counted;
}

std::array<std::byte, kMaskHeaderBytes> make_mask_header(std::int64_t numel, std::int64_t counted) {
  const Numbers numbers = {.numel = numel, .counted = counted};
  std::array<std::byte, kMaskHeaderBytes> header = {};
  static_assert(kMagic.size() + sizeof numbers == kMaskHeaderBytes);
  std::memcpy(header.data(), kMagic.data(), kMagic.size());
  std::memcpy(header.data() + kMagic.size(), &numbers, sizeof numbers);
  return header;
}

}  // namespace tessera
