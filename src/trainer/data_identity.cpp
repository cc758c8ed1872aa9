#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <vector>

#include "tessera/data.h"

namespace tessera {

namespace {

constexpr std::int64_t kHashed = 1024;  // tokens at each end of a file

std::uint64_t hash_of(const TokenSource& source, std::int64_t begin, std::int64_t end, std::uint64_t seed) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(end - begin));
  source.read(begin, tokens);
  return XXH3_64bits_withSeed(tokens.data(), tokens.size() * sizeof tokens.front(), seed);
}

std::uint64_t hash_of_targets(const TokenSource& source, std::int64_t begin, std::int64_t end,
                              std::uint64_t seed) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(end - begin));
  source.read_targets(begin, tokens);
  return XXH3_64bits_withSeed(tokens.data(), tokens.size() * sizeof tokens.front(), seed);
}

// What goes on behind the tokens where there are masks.
std::string counted_in(const TokenSource& source) {
  if (!source.masked()) return "";
  std::uint64_t hash = static_cast<std::uint64_t>(source.counted());
  for (const TokenRange& file : source.files()) {
    hash = hash_of_targets(source, file.begin, std::min(file.begin + kHashed, file.end), hash);
    hash = hash_of_targets(source, std::max(file.end - kHashed, file.begin), file.end, hash);
  }
  return fmt::format(", of which {} count (hash {:016x})", source.counted(), hash);
}

}  // namespace

std::string identity_of(const TokenSource& source) {
  const std::vector<TokenRange> files = source.files();
  for (const TokenRange& file : files) {
    source.prefetch({file.begin, std::min(file.begin + kHashed, file.end)});
    source.prefetch({std::max(file.end - kHashed, file.begin), file.end});
  }
  std::uint64_t hash = 0;
  for (const TokenRange& file : files) {
    const std::int64_t numel = file.numel();
    hash = XXH3_64bits_withSeed(&numel, sizeof numel, hash);
    hash = hash_of(source, file.begin, std::min(file.begin + kHashed, file.end), hash);
    hash = hash_of(source, std::max(file.end - kHashed, file.begin), file.end, hash);
  }
  return fmt::format("{} tokens in {} file{} (hash {:016x}){}", source.numel(), files.size(),
                     files.size() == 1 ? "" : "s", hash, counted_in(source));
}

}  // namespace tessera
