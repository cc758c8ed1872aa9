#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "src/trainer/mapped_file.h"
#include "src/trainer/token_header.h"
#include "src/trainer/token_mask.h"
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

[[noreturn]] void refuse_mask(const std::string& name) {
  throw EnvironmentError(fmt::format(
      "cannot read the mask '{}': it has become shorter since it was opened, or its disk fails", name));
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
  TokenSource source;
  source.vocabulary_ = vocabulary;
  source.name_ = path;
  std::vector<File> files;
  std::int64_t numel = 0;
  for (const std::string& name : matching_files(path)) {
    const auto file = std::make_shared<const MappedFile>(map_file(name));
    const TokenLayout layout = parse_token_file(name, file->bytes);
    if (files.empty()) source.encoding_ = layout.encoding;
    if (layout.encoding != source.encoding_)
      throw EnvironmentError(
          fmt::format("data '{}': '{}' holds {} and '{}' holds {}; all files must hold the same", path,
                      files.front().name, name_of(source.encoding_), name, name_of(layout.encoding)));
    files.push_back({.name = name,
                     .text = nullptr,
                     .mapped = file,
                     .data = file->bytes.data() + layout.offset_bytes,
                     .range = {numel, numel + layout.numel}});
    numel += layout.numel;
  }
  check_vocabulary(path, source.encoding_, vocabulary);
  source.open_masks(files);
  source.files_ = std::make_shared<const std::vector<File>>(std::move(files));
  return source;
}

void TokenSource::open_masks(std::vector<File>& files) {
  counted_ = files.back().range.end;
  if (encoding_ == TokenEncoding::text) return;
  std::int64_t counted = 0;
  const File* without = nullptr;
  for (File& file : files) {
    const std::string name = mask_name(file.name);
    std::error_code none;
    if (!std::filesystem::exists(std::filesystem::symlink_status(name, none))) {
      without = &file;
      continue;
    }
    file.mask = std::make_shared<const MappedFile>(map_file(name));
    if (!can_read(file.mask->bytes)) refuse_mask(name);
    counted += check_token_mask(name, file.mask->bytes, file.range.numel());
    masked_ = true;
  }
  if (!masked_) return;
  if (without != nullptr)
    throw EnvironmentError(
        fmt::format("data '{}': '{}' has no mask beside it, '{}', and other files have theirs; bring it "
                    "back, or name files "
                    "of one kind",
                    name_, without->name, mask_name(without->name)));
  counted_ = counted;
}

TokenSource TokenSource::of_text(std::string text, std::int64_t vocabulary, const std::string& name) {
  check_vocabulary(name, TokenEncoding::text, vocabulary);
  const auto owner = std::make_shared<const std::string>(std::move(text));
  TokenSource source;
  source.vocabulary_ = vocabulary;
  source.name_ = name;
  source.files_ = std::make_shared<const std::vector<File>>(
      1, File{.name = name,
              .text = owner,
              .mapped = nullptr,
              .data = reinterpret_cast<const std::byte*>(owner->data()),
              .range = {0, static_cast<std::int64_t>(owner->size())}});
  source.counted_ = source.numel();
  return source;
}

std::vector<TokenRange> TokenSource::files() const {
  std::vector<TokenRange> ranges;
  for (const File& file : *files_) ranges.push_back(file.range);
  return ranges;
}

const std::string& TokenSource::file_name(std::size_t place) const {
  if (place >= files_->size())
    throw UsageError(
        fmt::format("data '{}': file {} is not within 0 to {}", name_, place, files_->size() - 1));
  return (*files_)[place].name;
}

void TokenSource::check_range(TokenRange range) const {
  if (range.begin < 0 || range.begin > range.end || range.end > numel())
    throw UsageError(fmt::format("data '{}': tokens [{}, {}) are outside [0, {})", name_, range.begin,
                                 range.end, numel()));
}

template <typename Use>
void TokenSource::for_files(TokenRange range, const Use& use) const {
  check_range(range);
  auto file = std::upper_bound(files_->begin(), files_->end(), range.begin,
                               [](std::int64_t place, const File& f) { return place < f.range.end; });
  for (; range.numel() > 0; ++file) {
    const std::int64_t end = std::min(range.end, file->range.end);
    use(*file, TokenRange{range.begin - file->range.begin, end - file->range.begin});
    range.begin = end;
  }
}

void TokenSource::read(std::int64_t begin, std::span<std::int32_t> tokens) const {
  const auto count = static_cast<std::int64_t>(tokens.size());
  for_files({begin, begin + count}, [&](const File& file, TokenRange range) {
    read_file(file, range.begin, tokens.first(static_cast<std::size_t>(range.numel())));
    tokens = tokens.subspan(static_cast<std::size_t>(range.numel()));
  });
}

void TokenSource::read_targets(std::int64_t begin, std::span<std::int32_t> targets) const {
  read(begin, targets);
  if (!masked_) return;
  const auto count = static_cast<std::int64_t>(targets.size());
  for_files({begin, begin + count}, [&](const File& file, TokenRange range) {
    const std::byte* const bits = file.mask->bytes.data() + kMaskHeaderBytes;
    const std::span bytes(bits + range.begin / 8,
                          static_cast<std::size_t>((range.end + 7) / 8 - range.begin / 8));
    const bool there = can_read(bytes);
    for (std::int64_t token = range.begin; there && token < range.end; ++token)
      if (!counts_in(bits, token)) targets[static_cast<std::size_t>(token - range.begin)] = kNotCounted;
    if (!there || !holds(*file.mask, bytes)) refuse_mask(mask_name(file.name));
    targets = targets.subspan(static_cast<std::size_t>(range.numel()));
  });
}

void TokenSource::prefetch(TokenRange range) const {
  for_files(range, [&](const File& file, TokenRange part) {
    const std::int64_t bytes = bytes_of(encoding_);
    if (file.mapped)
      read_ahead({file.data + part.begin * bytes, static_cast<std::size_t>(part.numel() * bytes)});
  });
}

void TokenSource::read_file(const File& file, std::int64_t begin, std::span<std::int32_t> tokens) const {
  const std::byte* const data = file.data + begin * bytes_of(encoding_);
  const auto count = static_cast<std::int64_t>(tokens.size());
  const std::span bytes(data, static_cast<std::size_t>(count * bytes_of(encoding_)));
  const auto refuse_unless = [&](bool there) {
    if (!there)
      throw EnvironmentError(
          fmt::format("cannot read tokens [{}, {}) of '{}', which had {} when it was opened: it has become "
                      "shorter since, or its disk fails",
                      begin, begin + count, file.name, file.range.numel()));
  };
  refuse_unless(!file.mapped || can_read(bytes));
  const std::uint32_t largest = widen(encoding_, data, tokens);
  refuse_unless(!file.mapped || holds(*file.mapped, bytes));  // what was copied
  if (std::int64_t{largest} >= vocabulary_) refuse_token(file, begin, count);
}

void TokenSource::refuse_token(const File& file, std::int64_t begin, std::int64_t count) const {
  std::int64_t place = begin;
  std::array<std::int32_t, 1> token = {};
  std::uint32_t value = 0;
  for (; place < begin + count; ++place) {
    value = widen(encoding_, file.data + place * bytes_of(encoding_), token);
    if (std::int64_t{value} >= vocabulary_) break;
  }
  throw EnvironmentError(fmt::format("token file '{}' has token {} at place {}; the vocabulary is {}",
                                     file.name, value, place, vocabulary_));
}

void TokenSource::check_tokens() const {
  if (std::int64_t{1} << (8 * bytes_of(encoding_)) <= vocabulary_) return;  // no value is out of range
  constexpr std::int64_t kBlock = std::int64_t{1} << 19;
  std::vector<std::int32_t> block(static_cast<std::size_t>(kBlock));
  const auto block_at = [&](std::int64_t begin) {
    return TokenRange{std::min(begin, numel()), std::min(begin + kBlock, numel())};
  };
  prefetch(block_at(0));
  for (std::int64_t begin = 0; begin < numel(); begin += kBlock) {
    prefetch(block_at(begin + kBlock));
    read(begin, std::span(block).first(static_cast<std::size_t>(block_at(begin).numel())));
  }
}

}  // namespace tessera
