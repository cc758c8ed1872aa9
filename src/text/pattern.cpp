#include "src/text/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

#include "src/text/pattern_parser.h"
#include "tessera/error.h"

namespace tessera::text {

namespace {

constexpr std::size_t kAscii = 128;
constexpr std::size_t kMostClasses = 256;

// Where membership in any of the sets may change, above ASCII.
std::vector<char32_t> boundaries(const std::vector<CodePointSet>& sets) {
  std::vector<char32_t> all = {kAscii, kCodePoints};
  for (const CodePointSet& set : sets) {
    for (const CodePointRange& range : set.ranges()) {
      all.push_back(std::max<char32_t>(range.begin, kAscii));
      all.push_back(std::max<char32_t>(range.end, kAscii));
    }
  }
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace

CharacterClasses::CharacterClasses(const std::vector<CodePointSet>& sets) {
  std::vector<std::uint8_t> classes(kCodePoints);
  for (std::size_t c = 0; c < kAscii; ++c) {
    classes[c] = static_cast<std::uint8_t>(c);
    member_.push_back(static_cast<char32_t>(c));
  }
  std::map<std::vector<bool>, std::size_t> class_of;  // by which sets contain it
  const std::vector<char32_t> ends = boundaries(sets);
  for (std::size_t i = 0; i + 1 < ends.size(); ++i) {
    std::vector<bool> in_sets;
    for (const CodePointSet& set : sets) in_sets.push_back(set.contains(ends[i]));
    const auto [entry, is_new] = class_of.try_emplace(in_sets, member_.size());
    if (is_new) member_.push_back(ends[i]);
    if (entry->second >= kMostClasses)
      throw UsageError("a pattern tells more than 128 kinds of characters above ASCII apart");
    std::fill(classes.begin() + ends[i], classes.begin() + ends[i + 1],
              static_cast<std::uint8_t>(entry->second));
  }
  store_pages(classes);
}

void CharacterClasses::store_pages(const std::vector<std::uint8_t>& classes) {
  constexpr std::ptrdiff_t kPage = 1 << kPageBits;
  std::map<std::string, std::uint16_t> stored;
  for (auto page = classes.begin(); page != classes.end(); page += kPage) {
    const auto number = static_cast<std::uint16_t>(stored.size());
    const auto [entry, is_new] = stored.try_emplace(std::string(page, page + kPage), number);
    if (is_new) pages_.insert(pages_.end(), page, page + kPage);
    page_of_.push_back(entry->second);
  }
}

std::vector<std::uint8_t> CharacterClasses::of(const CodePointSet& set) const {
  std::vector<std::uint8_t> classes;
  for (std::size_t i = 0; i < member_.size(); ++i)
    if (set.contains(member_[i])) classes.push_back(static_cast<std::uint8_t>(i));
  return classes;
}

BytePattern translate_pattern(std::string_view pattern) {
  const PatternParser parser(pattern);
  BytePattern result{.pattern = {}, .classes = CharacterClasses(parser.sets())};
  for (const PatternPart& part : parser.parts()) {
    result.pattern += part.text;
    if (part.set < 0) continue;
    const std::vector<std::uint8_t> classes =
        result.classes.of(parser.sets()[static_cast<std::size_t>(part.set)]);
    if (classes.empty()) {
      result.pattern += "(?!)";
      continue;
    }
    result.pattern += '[';
    for (const std::uint8_t byte : classes)
      fmt::format_to(std::back_inserter(result.pattern), "\\x{:02x}", byte);
    result.pattern += ']';
  }
  return result;
}

}  // namespace tessera::text
