#include "src/trainer/token_header.h"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

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

// What other files begin with. As text they would train without a word, on bytes that mean nothing.
struct Other {
  std::string_view begins;
  std::string_view is;
};
constexpr Other kOthers[] = {{"PAR1", "a Parquet file"},
                             {"ARROW1", "an Arrow file"},
                             {"\x93NUMPY", "a NumPy array"},
                             {"PK\x03\x04", "a zip archive, as .npz and .pt files are"},
                             {"\x1F\x8B", "compressed by gzip"},
                             {"\x28\xB5\x2F\xFD", "compressed by zstd"},
                             {"\xFD\x37zXZ", "compressed by xz"},
                             {"{\"text\"", "JSON lines"},
                             {"{\"content\"", "JSON lines"},
                             {"TSRMASK1", "the mask of a token file"},
                             {"%PDF-", "a PDF file"},
                             {"SQLite format 3", "an SQLite database"}};

bool is_safetensors(std::span<const std::byte> file) {
  std::uint64_t header = 0;
  if (file.size() < sizeof header + 2) return false;
  std::memcpy(&header, file.data(), sizeof header);
  return header >= 2 && header <= file.size() - sizeof header && file[sizeof header] == std::byte{'{'};
}

// Empty where nothing says that the file is anything but text.
std::string_view other_than_text(const std::string& name, std::span<const std::byte> file) {
  const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size());
  for (const Other& other : kOthers)
    if (bytes.starts_with(other.begins)) return other.is;
  if (name.ends_with(".jsonl")) return "JSON lines";
  return is_safetensors(file) ? "a safetensors file" : std::string_view();
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
    if (const std::string_view other = other_than_text(name, file); !other.empty())
      throw EnvironmentError(
          fmt::format("data file '{}' is {}, not text or tokens: write the text that it holds to a file, or "
                      "its tokens to a .bin "
                      "file, and name that",
                      name, other));
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
