#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <span>
#include <vector>

#include "tessera/data.h"

namespace tessera {

namespace {

constexpr std::int64_t kHashed = 1024;  // tokens at each end of a file

using Read = void (TokenSource::*)(std::int64_t begin, std::span<std::int32_t> tokens) const;

std::uint64_t hash_of(const TokenSource& source, Read read, TokenRange range, std::uint64_t seed) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(range.numel()));
  (source.*read)(range.begin, tokens);
  return XXH3_64bits_withSeed(tokens.data(), tokens.size() * sizeof tokens.front(), seed);
}

TokenRange head_of(const TokenRange& file) { return {file.begin, std::min(file.begin + kHashed, file.end)}; }
TokenRange tail_of(const TokenRange& file) { return {std::max(file.end - kHashed, file.begin), file.end}; }

std::uint64_t hash_of_ends(const TokenSource& source, Read read, const TokenRange& file, std::uint64_t seed) {
  return hash_of(source, read, tail_of(file), hash_of(source, read, head_of(file), seed));
}

// What goes on behind the tokens where there are masks.
std::string counted_in(const TokenSource& source) {
  if (!source.masked()) return "";
  std::uint64_t hash = static_cast<std::uint64_t>(source.counted());
  for (const TokenRange& file : source.files())
    hash = hash_of_ends(source, &TokenSource::read_targets, file, hash);
  return fmt::format(", of which {} count (hash {:016x})", source.counted(), hash);
}

}  // namespace

std::string identity_of(const TokenSource& source) {
  const std::vector<TokenRange> files = source.files();
  for (const TokenRange& file : files) {
    source.prefetch(head_of(file));
    source.prefetch(tail_of(file));
  }
  std::uint64_t hash = 0;
  for (const TokenRange& file : files) {
    const std::int64_t numel = file.numel();
    hash = XXH3_64bits_withSeed(&numel, sizeof numel, hash);
    hash = hash_of_ends(source, &TokenSource::read, file, hash);
  }
  return fmt::format("{} tokens in {} file{} (hash {:016x}){}", source.numel(), files.size(),
                     files.size() == 1 ? "" : "s", hash, counted_in(source));
}

}  // namespace tessera
