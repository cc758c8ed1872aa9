// The parts of a tokenizer by themselves: broken UTF-8, characters for bytes, merges, normalizers.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "src/text/byte_characters.h"
#include "src/text/merge_table.h"
#include "src/text/normalizer.h"
#include "src/text/utf8_text.h"
#include "src/text/word_cache.h"

namespace tessera::text {
namespace {

using Ids = std::vector<std::int32_t>;

std::string repaired(const std::string& bytes) {
  std::string text;
  append_utf8(bytes, text);
  return text;
}

// As in Python, where each was tried.
TEST(Utf8, BrokenBytesAreReplaced) {
  const std::string r = "\ufffd";
  EXPECT_EQ(repaired("a\xff"
                     "b"),
            "a" + r + "b");
  EXPECT_EQ(repaired("\xe2\x82"), r);  // one for a start that is cut short
  EXPECT_EQ(repaired("\xe2\x82x"), r + "x");
  EXPECT_EQ(repaired("\xf0\x9f\x98 "), r + " ");
  EXPECT_EQ(repaired("\xed\xa0\x80"), r + r + r);  // a surrogate
  EXPECT_EQ(repaired("\xc0\xaf"), r + r);          // longer than it need be
  EXPECT_EQ(repaired("\xe0\x80\x80"), r + r + r);
  EXPECT_EQ(repaired("\xf4\x90\x80\x80"), r + r + r + r);
  EXPECT_EQ(repaired("\xf0\x9f\xf0\x9f\x98\x80"), r + "\U0001f600");
  EXPECT_EQ(repaired("\x80\xbf"), r + r);
  EXPECT_EQ(repaired("h\u00e9\U0001f600"), "h\u00e9\U0001f600");
}

TEST(Utf8, CodePointsGoThereAndBack) {
  for (char32_t c = 0; c < 0x110000; c += c < 0x3000 ? 1 : 97) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string text;
    append_code_point(c, text);
    ASSERT_TRUE(is_utf8(text)) << static_cast<unsigned>(c);
    EXPECT_TRUE(first_code_point(text) == c) << static_cast<unsigned>(c);
    EXPECT_TRUE(last_code_point("\u00e9" + text) == c) << static_cast<unsigned>(c);
    EXPECT_EQ(character_bytes(text[0]), text.size());
  }
}

TEST(ByteCharacters, AreOneForEachByte) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto value = static_cast<std::uint8_t>(byte);
    EXPECT_EQ(byte_of_character(character_of_byte(value)), value);
  }
  EXPECT_EQ(characters_of_bytes(" a\n"), "\u0120a\u010a");
  EXPECT_EQ(bytes_of_characters("\u0120a"), " a");
  EXPECT_EQ(bytes_of_characters("a "), std::nullopt);
  EXPECT_EQ(bytes_of_characters("\u0144"), std::nullopt);
}

// The definition: the lowest rank first, the leftmost of equals.
Ids merged_slowly(const MergeTable& table, Ids ids) {
  for (;;) {
    const Merge* best = nullptr;
    std::size_t place = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const Merge* merge = table.find(ids[i], ids[i + 1]);
      if (merge == nullptr || (best != nullptr && best->rank <= merge->rank)) continue;
      best = merge;
      place = i;
    }
    if (best == nullptr) return ids;
    ids[place] = best->id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

// Words below and above the length from which a heap finds the next merge.
TEST(Merges, AreAppliedByRank) {
  std::mt19937 draw(7);
  const auto below = [&](unsigned n) { return static_cast<std::int32_t>(draw() % n); };
  for (int round = 0; round < 300; ++round) {
    MergeTable table(60);
    for (std::uint32_t rank = 0; rank < 60; ++rank) {
      const auto fresh = static_cast<std::int32_t>(4 + rank);
      table.set(below(4 + rank), below(4 + rank), {.rank = rank, .id = fresh});
    }
    Ids ids(1 + draw() % 150);
    std::ranges::generate(ids, [&] { return below(4); });
    const Ids expected = merged_slowly(table, ids);
    MergeScratch scratch;
    merge_all(table, ids, scratch);
    ASSERT_EQ(ids, expected) << "round " << round;
  }
}

TEST(Merges, TheLastOfEqualPairsCounts) {
  MergeTable table(2);
  table.set(1, 2, {.rank = 0, .id = 3});
  table.set(1, 2, {.rank = 1, .id = 4});
  EXPECT_EQ(table.find(1, 2)->id, 4);
  EXPECT_EQ(table.find(2, 1), nullptr);
}

TEST(WordCache, KeepsTheLastWordOfASlot) {
  WordCache cache;
  EXPECT_EQ(cache.slot_of(""), nullptr);
  EXPECT_EQ(cache.slot_of(std::string(WordCache::kMostBytes + 1, 'a')), nullptr);
  const std::string word(WordCache::kMostBytes, 'a');
  WordCache::Slot* slot = cache.slot_of(word);
  ASSERT_NE(slot, nullptr);
  EXPECT_FALSE(WordCache::holds(*slot, word));
  WordCache::store(*slot, word, Ids(WordCache::kMostIds + 1, 5));  // too many: not stored
  EXPECT_FALSE(WordCache::holds(*slot, word));
  WordCache::store(*slot, word, Ids{5, 6});
  EXPECT_TRUE(WordCache::holds(*slot, word));
  EXPECT_FALSE(WordCache::holds(*slot, word.substr(1)));
  EXPECT_EQ(Ids(slot->tokens().begin(), slot->tokens().end()), (Ids{5, 6}));
}

std::string normalized(const char* type, std::string text) {
  RegexScratch scratch;
  const nlohmann::json object = {{"type", type}};
  Normalizer::read(&object).apply(text, scratch);
  return text;
}

TEST(Normalizer, Forms) {
  EXPECT_EQ(normalized("NFC", "e\u0301 \u212b"), "\u00e9 \u00c5");
  EXPECT_EQ(normalized("NFD", "\u00e9"), "e\u0301");
  EXPECT_EQ(normalized("NFKC", "\ufb01\u00b2"), "fi2");
  EXPECT_EQ(normalized("NFKD", "\u1e9b\u0323"), "s\u0323\u0307");
  EXPECT_EQ(normalized("NFC", "plain"), "plain");
}

// The library's tables are those of Unicode 9.0: a mark of 11.0 stays where it is, one of 3.0 is put in
// order.
TEST(Normalizer, LeavesCharactersNewerThanUnicode9) {
  EXPECT_EQ(normalized("NFC", "a\u09fe\u0323"), "a\u09fe\u0323");
  EXPECT_EQ(normalized("NFC", "x\u0301\u0323"), "x\u0323\u0301");
  EXPECT_EQ(normalized("NFKC", "\u32ff"), "\u32ff");  // added in 12.1
  EXPECT_EQ(normalized("NFKC", "\u337e"), "\u660e\u6cbb");
}

}  // namespace
}  // namespace tessera::text
