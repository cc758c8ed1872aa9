// Ids and texts are those of the tokenizers library, for small tokenizers of each family (golden.py made
// them).
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tessera/tokenizer.h"
#include "tests/text/golden_files.h"

namespace tessera {
namespace {

using Ids = std::vector<std::int32_t>;

class TokenizerGolden : public testing::TestWithParam<const char*> {};

void check_case(const Tokenizer& tokenizer, const std::string& text, const nlohmann::json& expected) {
  const Ids around = expected["around"];
  const auto begin = around.begin() + expected["before"].get<int>();
  const Ids found(begin, begin + expected["ids"].get<int>());
  EXPECT_EQ(tokenizer.encode(text, {.add_special_tokens = true}), around);
  EXPECT_EQ(tokenizer.encode(text), found);
  EXPECT_EQ(tokenizer.encode(text, {.find_special_tokens = false}), expected.value("plain", found));
  EXPECT_EQ(tokenizer.decode(around), expected["decoded"].get<std::string>());
  EXPECT_EQ(tokenizer.decode(around, true), expected["skipped"].get<std::string>());
}

TEST_P(TokenizerGolden, IsAsInTheLibrary) {
  const Tokenizer tokenizer = Tokenizer::open(test::kGolden / (std::string(GetParam()) + ".json"));
  const nlohmann::json golden = test::read_golden();
  const nlohmann::json& cases = golden["files"][GetParam()];
  const std::vector<std::string> texts = test::golden_texts();
  ASSERT_EQ(cases.size(), texts.size());
  ASSERT_GE(texts.size(), 60u);
  for (int round = 0; round < 2; ++round) {  // the second finds words in the cache
    for (std::size_t i = 0; i < texts.size(); ++i) {
      SCOPED_TRACE(std::string(GetParam()) + ", text " + std::to_string(i));
      check_case(tokenizer, texts[i], cases[i]);
    }
  }
}

// Random ids: their bytes are broken UTF-8 more often than not.
TEST_P(TokenizerGolden, DecodesAnyIds) {
  const Tokenizer tokenizer = Tokenizer::open(test::kGolden / (std::string(GetParam()) + ".json"));
  const nlohmann::json golden = test::read_golden();
  const nlohmann::json& draws = golden["drawn"][GetParam()];
  ASSERT_GE(draws.size(), 20u);
  for (const nlohmann::json& drawn : draws) {
    SCOPED_TRACE(drawn["ids"].dump());
    EXPECT_EQ(tokenizer.decode(drawn["ids"].get<Ids>()), drawn["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer.decode(drawn["ids"].get<Ids>(), true), drawn["skipped"].get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(Families, TokenizerGolden, testing::ValuesIn(test::kFamilies),
                         [](const auto& family) { return std::string(family.param); });

// One tokenizer, several threads: each call has memory of its own.
TEST(TokenizerThreads, GiveTheSameIds) {
  const Tokenizer tokenizer = Tokenizer::open(test::kGolden / "llama3.json");
  std::string text;
  for (const std::string& part : test::golden_texts()) text += part;
  const Ids expected = tokenizer.encode(text);
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (Ids& result : results)
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) result = tokenizer.encode(text);
    });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& result : results) EXPECT_EQ(result, expected);
}

}  // namespace
}  // namespace tessera
