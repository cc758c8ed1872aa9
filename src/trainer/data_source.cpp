#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "src/trainer/mapped_file.h"
#include "src/trainer/token_header.h"
#include "tessera/data.h"
#include "tessera/error.h"

namespace tessera {
namespace {

void check_vocabulary(const std::string& name, TokenEncoding encoding, std::int64_t vocabulary) {
  if (vocabulary < 1 || vocabulary > std::int64_t{1} << 31)
    throw UsageError(fmt::format("data '{}': vocabulary = {} must be from 1 to 2^31", name, vocabulary));
  if (encoding == TokenEncoding::text && vocabulary < 256)
    throw UsageError(fmt::format(
        "data '{}': text is read as bytes and needs a vocabulary of at least 256, not {}", name, vocabulary));
}

// Copies tokens and returns the largest. Loads through memcpy: a mapped file of uint16 need not be aligned.
template <typename Token>
std::uint32_t widen(const std::byte* source, std::span<std::int32_t> tokens) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    Token token;
    std::memcpy(&token, source + i * sizeof token, sizeof token);
    largest = std::max<std::uint32_t>(largest, token);
    tokens[i] = static_cast<std::int32_t>(token);
  }
  return largest;
}

std::uint32_t widen(TokenEncoding encoding, const std::byte* source, std::span<std::int32_t> tokens) {
  switch (encoding) {
    case TokenEncoding::text:
      return widen<std::uint8_t>(source, tokens);
    case TokenEncoding::uint16:
      return widen<std::uint16_t>(source, tokens);
    case TokenEncoding::uint32:
      return widen<std::uint32_t>(source, tokens);
  }
  return 0;
}

}  // namespace

std::string_view name_of(TokenEncoding encoding) {
  switch (encoding) {
    case TokenEncoding::text:
      return "text";
    case TokenEncoding::uint16:
      return "uint16";
    case TokenEncoding::uint32:
      return "uint32";
  }
  return "?";
}

TokenSource TokenSource::open(const std::string& path, std::int64_t vocabulary) {
  MappedFile file = map_file(path);
  const TokenLayout layout = parse_token_file(path, file.bytes);
  check_vocabulary(path, layout.encoding, vocabulary);
  TokenSource source;
  source.owner_ = std::move(file.owner);
  source.data_ = file.bytes.data() + layout.offset_bytes;
  source.numel_ = layout.numel;
  source.vocabulary_ = vocabulary;
  source.encoding_ = layout.encoding;
  source.name_ = path;
  return source;
}

TokenSource TokenSource::of_text(std::string text, std::int64_t vocabulary, const std::string& name) {
  check_vocabulary(name, TokenEncoding::text, vocabulary);
  const auto owner = std::make_shared<const std::string>(std::move(text));
  TokenSource source;
  source.data_ = reinterpret_cast<const std::byte*>(owner->data());
  source.numel_ = static_cast<std::int64_t>(owner->size());
  source.vocabulary_ = vocabulary;
  source.name_ = name;
  source.owner_ = owner;
  return source;
}

void TokenSource::read(std::int64_t begin, std::span<std::int32_t> tokens) const {
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (begin < 0 || begin > numel_ || count > numel_ - begin)
    throw UsageError(
        fmt::format("data '{}': tokens [{}, {}) are outside [0, {})", name_, begin, begin + count, numel_));
  if (count == 0) return;
  const std::uint32_t largest = widen(encoding_, data_ + begin * bytes_of(encoding_), tokens);
  if (std::int64_t{largest} >= vocabulary_) refuse_token(begin, count);
}

void TokenSource::refuse_token(std::int64_t begin, std::int64_t count) const {
  std::int64_t place = begin;
  std::array<std::int32_t, 1> token = {};
  std::uint32_t value = 0;
  for (; place < begin + count; ++place) {
    value = widen(encoding_, data_ + place * bytes_of(encoding_), token);
    if (std::int64_t{value} >= vocabulary_) break;
  }
  throw EnvironmentError(fmt::format("token file '{}' has token {} at place {}; the vocabulary is {}", name_,
                                     value, place, vocabulary_));
}

void TokenSource::check_tokens() const {
  if (std::int64_t{1} << (8 * bytes_of(encoding_)) <= vocabulary_) return;  // no value is out of range
  std::vector<std::int32_t> block(std::size_t{1} << 16);
  for (std::int64_t begin = 0; begin < numel_; begin += static_cast<std::int64_t>(block.size())) {
    const auto count = std::min<std::int64_t>(static_cast<std::int64_t>(block.size()), numel_ - begin);
    read(begin, std::span(block).first(static_cast<std::size_t>(count)));
  }
}

}  // namespace tessera
