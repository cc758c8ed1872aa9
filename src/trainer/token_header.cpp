#include "src/trainer/token_header.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "tessera/error.h"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

struct Format {
  TokenEncoding encoding;
  std::int32_t magic;
  std::int32_t version;
};
constexpr Format kFormats[] = {{TokenEncoding::uint16, 20240520, 1}, {TokenEncoding::uint32, 20240801, 7}};

// Header word `index`; 0 where the file ends before it.
std::int32_t word(std::span<const std::byte> file, std::size_t index) {
  std::int32_t value = 0;
  if (file.size() >= (index + 1) * sizeof value)
    std::memcpy(&value, file.data() + index * sizeof value, sizeof value);
  return value;
}

const Format* format_of(std::int32_t magic) {
  for (const Format& format : kFormats)
    if (format.magic == magic) return &format;
  return nullptr;
}

[[noreturn]] void refuse(const std::string& name, const std::string& problem) {
  throw EnvironmentError(fmt::format("token file '{}' {}", name, problem));
}

}  // namespace

TokenLayout parse_token_file(const std::string& name, std::span<const std::byte> file) {
  const auto file_bytes = static_cast<std::int64_t>(file.size());
  const Format* format = format_of(word(file, 0));
  if (format == nullptr && !name.ends_with(".bin")) {
    if (file.empty()) throw EnvironmentError(fmt::format("text file '{}' is empty", name));
    return {.encoding = TokenEncoding::text, .offset_bytes = 0, .numel = file_bytes};
  }
  if (file_bytes < kTokenHeaderBytes)
    refuse(name, fmt::format("is truncated: its header takes {} bytes, the file has {}", kTokenHeaderBytes,
                             file_bytes));
  if (format == nullptr)
    refuse(name, fmt::format("starts with {}, not with magic {} (uint16) or {} (uint32)", word(file, 0),
                             kFormats[0].magic, kFormats[1].magic));
  if (word(file, 1) != format->version)
    refuse(name, fmt::format("has version {}; for magic {} only {} is known", word(file, 1), format->magic,
                             format->version));
  const std::int64_t numel = word(file, 2);
  if (numel < 1) refuse(name, fmt::format("declares {} tokens; there must be at least 1", numel));
  const std::int64_t expected_bytes = kTokenHeaderBytes + numel * bytes_of(format->encoding);
  if (file_bytes != expected_bytes)
    refuse(name, fmt::format("{}: {} tokens of {} take {} bytes with the header, the file has {}",
                             file_bytes < expected_bytes ? "is truncated" : "is longer than it declares",
                             numel, name_of(format->encoding), expected_bytes, file_bytes));
  return {.encoding = format->encoding, .offset_bytes = kTokenHeaderBytes, .numel = numel};
}

std::array<std::byte, kTokenHeaderBytes> make_token_header(TokenEncoding encoding, std::int64_t numel) {
  const Format& format = kFormats[encoding == TokenEncoding::uint32 ? 1 : 0];
  const std::array<std::int32_t, 3> words = {format.magic, format.version, static_cast<std::int32_t>(numel)};
  std::array<std::byte, kTokenHeaderBytes> header = {};
  std::memcpy(header.data(), words.data(), sizeof words);
  return header;
}

}  // namespace tessera
