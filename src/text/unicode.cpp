#include "src/text/unicode.h"

#include <unicode/uniset.h>

#include <algorithm>
#include <array>
#include <string>

namespace tessera::text {

namespace {

constexpr std::array<std::uint32_t, 4099> kRuns = {
#include "src/text/unicode_categories.inc"
};
// In the order of the numbers in the table.
constexpr std::string_view kCategories = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCoCn";

CodePointSet set_of(std::initializer_list<std::string_view> names, std::vector<CodePointRange> more) {
  for (const std::string_view name : names) {
    const std::optional<CodePointSet> set = category_set(name);
    more.insert(more.end(), set->ranges().begin(), set->ranges().end());
  }
  return CodePointSet(std::move(more));
}

// Letters, marks, digits, connectors, and symbols that are circled letters.
std::vector<CodePointRange> circled_letters() {
  return {{0x24b6, 0x24ea}, {0x1f130, 0x1f14a}, {0x1f150, 0x1f16a}, {0x1f170, 0x1f18a}};
}

}  // namespace

CodePointSet::CodePointSet(std::vector<CodePointRange> ranges) {
  std::ranges::sort(ranges, {}, &CodePointRange::begin);
  for (const CodePointRange& range : ranges) {
    if (range.begin >= range.end) continue;
    if (!ranges_.empty() && range.begin <= ranges_.back().end)
      ranges_.back().end = std::max(ranges_.back().end, range.end);
    else
      ranges_.push_back(range);
  }
}

bool CodePointSet::contains(char32_t code_point) const {
  const auto after = std::ranges::upper_bound(ranges_, code_point, {}, &CodePointRange::begin);
  return after != ranges_.begin() && code_point < std::prev(after)->end;
}

CodePointSet CodePointSet::complement() const {
  CodePointSet result;
  char32_t begin = 0;
  for (const CodePointRange& range : ranges_) {
    if (begin < range.begin) result.ranges_.push_back({begin, range.begin});
    begin = range.end;
  }
  if (begin < kCodePoints) result.ranges_.push_back({begin, kCodePoints});
  return result;
}

CodePointSet CodePointSet::united(const CodePointSet& other) const {
  std::vector<CodePointRange> all = ranges_;
  all.insert(all.end(), other.ranges_.begin(), other.ranges_.end());
  return CodePointSet(std::move(all));
}

CodePointSet CodePointSet::intersected(const CodePointSet& other) const {
  return complement().united(other.complement()).complement();
}

CodePointSet CodePointSet::with_other_cases() const {
  icu::UnicodeSet set;
  for (const CodePointRange& range : ranges_)
    set.add(static_cast<UChar32>(range.begin), static_cast<UChar32>(range.end) - 1);
  set.closeOver(USET_CASE_INSENSITIVE).removeAllStrings();
  std::vector<CodePointRange> ranges;
  for (std::int32_t i = 0; i < set.getRangeCount(); ++i)
    ranges.push_back(
        {static_cast<char32_t>(set.getRangeStart(i)), static_cast<char32_t>(set.getRangeEnd(i)) + 1});
  return CodePointSet(std::move(ranges));
}

std::optional<CodePointSet> category_set(std::string_view name) {
  std::vector<CodePointRange> ranges;
  if (name.empty() || name.size() > 2) return std::nullopt;
  for (std::size_t i = 0; i < kRuns.size(); ++i) {
    if (kCategories.substr((kRuns[i] & 31U) * 2, name.size()) != name) continue;
    ranges.push_back({kRuns[i] >> 5U, i + 1 < kRuns.size() ? kRuns[i + 1] >> 5U : kCodePoints});
  }
  if (ranges.empty()) return std::nullopt;
  return CodePointSet(std::move(ranges));
}

const CodePointSet& space_set() {
  static const CodePointSet set = set_of({"Z"}, {{0x09, 0x0e}, {0x85, 0x86}});
  return set;
}

const CodePointSet& rust_word_set() {
  static const CodePointSet set = [] {
    std::vector<CodePointRange> more = circled_letters();
    more.push_back({0x200c, 0x200e});  // joiners
    return set_of({"L", "M", "Nd", "Nl", "Pc"}, std::move(more));
  }();
  return set;
}

// Oniguruma counts six numbers of Latin-1 as well: ² ³ ¹ ¼ ½ ¾.
const CodePointSet& pattern_word_set() {
  static const CodePointSet set = [] {
    std::vector<CodePointRange> more = circled_letters();
    more.insert(more.end(), {{0xb2, 0xb4}, {0xb9, 0xba}, {0xbc, 0xbf}});
    return set_of({"L", "M", "Nd", "Nl", "Pc"}, std::move(more));
  }();
  return set;
}

}  // namespace tessera::text
