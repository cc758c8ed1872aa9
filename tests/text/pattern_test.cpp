// Patterns mean what they mean in Oniguruma, by which the tokenizers library matches. Expected pieces are the
// library's, of Split(pattern, "isolated").
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "src/text/pattern.h"
#include "src/text/regex.h"
#include "src/text/unicode.h"
#include "tessera/error.h"

namespace tessera::text {
namespace {

using Pieces = std::vector<std::string>;

Pieces pieces(std::string_view pattern, std::string_view text) {
  RegexScratch scratch;
  const Regex regex(pattern);
  RegexMatches matches(regex, text, scratch);
  Pieces result;
  std::size_t end = 0;
  for (Span match; matches.next(match); end = match.end) {
    if (end != match.begin) result.emplace_back(text.substr(end, match.begin - end));
    if (match.begin != match.end) result.emplace_back(text.substr(match.begin, match.end - match.begin));
  }
  if (end != text.size()) result.emplace_back(text.substr(end));
  return result;
}

TEST(Pattern, Quantifiers) {
  EXPECT_EQ(pieces(R"(\p{N}{1,3}+)", "12345 x"), (Pieces{"12345", " x"}));  // repeats the interval
  EXPECT_EQ(pieces(R"(\p{N}{1,3})", "12345 x"), (Pieces{"123", "45", " x"}));
  EXPECT_EQ(pieces("a{,2}", "aaaa"), (Pieces{"aa", "aa"}));
  EXPECT_EQ(pieces("a{2}+", "aaaaa"), (Pieces{"aaaa", "a"}));
  EXPECT_EQ(pieces("a++", "aaa"), (Pieces{"aaa"}));
  EXPECT_EQ(pieces("a?+b", "ab"), (Pieces{"ab"}));
  EXPECT_EQ(pieces("a{x", "a{x"), (Pieces{"a{x"}));
  EXPECT_EQ(pieces("x*", "axxb"), (Pieces{"a", "xx", "b"}));
}

TEST(Pattern, AnchorsMatchAtLines) {
  EXPECT_EQ(pieces(R"(\s++$)", "a  \nb  "), (Pieces{"a  \nb", "  "}));
  EXPECT_EQ(pieces("^x", "x\nx\n"), (Pieces{"x", "\n", "x", "\n"}));
  EXPECT_EQ(pieces(R"(\bé)", "é aé"), (Pieces{"é", " aé"}));
}

TEST(Pattern, Lists) {
  EXPECT_EQ(pieces("[a-c&&[^b]]+", "abcab"), (Pieces{"a", "b", "ca", "b"}));
  EXPECT_EQ(pieces(R"([^\S\r\n]+)", " \t\n a"), (Pieces{" \t", "\n", " ", "a"}));
  EXPECT_EQ(pieces("[]a]+", "]a"), (Pieces{"]a"}));
  EXPECT_EQ(pieces(R"([\w]+)", "²a-"), (Pieces{"²a", "-"}));
  EXPECT_EQ(pieces("[一-龥぀-ゟ]+", "a中文ぁb"), (Pieces{"a", "中文ぁ", "b"}));
  EXPECT_EQ(pieces(R"([^\r\n\p{L}\p{N}]?\p{L}+)", "_日x1"), (Pieces{"_日x", "1"}));
  EXPECT_EQ(pieces("[&a]+", "a&b"), (Pieces{"a&", "b"}));
}

TEST(Pattern, IgnoresCase) {
  EXPECT_EQ(pieces("(?i:'S|'[sdmt])", "'ſ'S"), (Pieces{"'ſ", "'S"}));
  EXPECT_EQ(pieces("(?i)ab|c", "ABC"), (Pieces{"AB", "C"}));
  EXPECT_EQ(pieces("a(?i)b|c", "aBaC"), (Pieces{"aB", "aC"}));
  EXPECT_EQ(pieces("(?i:k)k", "\u212ak\u212aK"), (Pieces{"\u212ak", "\u212aK"}));
}

TEST(Pattern, Groups) {
  EXPECT_EQ(pieces("a(?#c)b", "ab"), (Pieces{"ab"}));
  EXPECT_EQ(pieces("(?<=ü)x|(?<!ü)y", "üxüy xy"), (Pieces{"ü", "x", "üy x", "y"}));
  EXPECT_EQ(pieces("(?m).+", "a\nb"), (Pieces{"a\nb"}));
  EXPECT_EQ(pieces(".+", "a\nb"), (Pieces{"a", "\n", "b"}));
  EXPECT_EQ(pieces(R"(\x41|\u00e9|\x{1F600})", "Aé😀z"), (Pieces{"A", "é", "😀", "z"}));
  EXPECT_EQ(pieces(R"(\R)", "a\r\n\u2028b"), (Pieces{"a", "\r\n", "\u2028", "b"}));
}

TEST(Pattern, RefusesWhatItDoesNotKnow) {
  for (const char* pattern :
       {"(", ")", "a**", "*a", "[a", "[b-a]", R"(\p{Han})", R"(\p{L)", R"(\pL)", R"(\1)", R"(\k<a>)", R"(\K)",
        "(?<name>a)", "(?s).", R"(\d{2}?)", R"(\xff)", "\\", "[[:punct:]]", "(?<=a+)b"})
    EXPECT_THROW(Regex{pattern}, UsageError) << pattern;
  EXPECT_THROW(Regex(std::string(100'000, '[')), UsageError);
  EXPECT_THROW(Regex(std::string(5'000, '[')), UsageError);
  EXPECT_THROW(Regex(std::string(5'000, '(')), UsageError);
  std::string many;
  for (char32_t c = 0x100; c < 0x200; ++c) many += "\\x{" + std::to_string(c) + "}";
  EXPECT_THROW(Regex{many}, UsageError);
}

// Equal to what the library matches, at every code point: `unicode_categories.py --compare` compares the
// table with it. This hash is over the category numbers of all code points of unicodedata2 16.0.0.
TEST(Unicode, CategoriesAreThoseOfVersion16) {
  constexpr std::string_view kNames = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCoCn";
  std::vector<unsigned> category(kCodePoints, 99);
  for (unsigned number = 0; 2 * number < kNames.size(); ++number) {
    const CodePointSet set = *category_set(kNames.substr(std::size_t{2} * number, 2));
    for (const CodePointRange& range : set.ranges())
      for (char32_t c = range.begin; c < range.end; ++c) category[c] = number;
  }
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const unsigned number : category) hash = (hash ^ number) * 0x100000001b3U;
  EXPECT_EQ(hash, 0x2f09aaee28c9eb71U);
}

// Numbers of code points that one-character patterns match in the library, U+0000 and surrogates aside.
TEST(Unicode, SetsAreThoseOfTheLibrary) {
  const auto count = [](const CodePointSet& set) {
    std::size_t sum = 0;
    for (const CodePointRange& range : set.ranges()) sum += range.end - range.begin;
    return sum;
  };
  EXPECT_EQ(count(*category_set("L")), 141'028u);
  EXPECT_EQ(count(*category_set("N")), 1'911u);
  EXPECT_EQ(count(*category_set("M")), 2'501u);
  EXPECT_EQ(count(*category_set("P")), 855u);
  EXPECT_EQ(count(*category_set("S")), 8'514u);
  EXPECT_EQ(count(space_set()), 25u);
  EXPECT_EQ(count(pattern_word_set()), 144'671u);
  EXPECT_FALSE(category_set("X").has_value());
  EXPECT_FALSE(category_set("uL").has_value());
}

TEST(Unicode, SetsAreComputed) {
  const CodePointSet set({{5, 9}, {1, 3}, {8, 12}, {3, 4}, {20, 20}});
  EXPECT_EQ(set.ranges(), (std::vector<CodePointRange>{{1, 4}, {5, 12}}));
  EXPECT_EQ(set.complement().complement(), set);
  EXPECT_EQ(set.intersected(CodePointSet({{3, 6}})).ranges(), (std::vector<CodePointRange>{{3, 4}, {5, 6}}));
  EXPECT_TRUE(set.contains(11));
  EXPECT_FALSE(set.contains(12));
  EXPECT_FALSE(set.contains(0));
}

}  // namespace
}  // namespace tessera::text
