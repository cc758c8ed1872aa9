// Training gives the vocabulary and merges of the tokenizers library, whatever the order of texts.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tessera/error.h"
#include "tessera/tokenizer.h"
#include "tests/text/golden_files.h"

namespace tessera {
namespace {

using Ids = std::vector<std::int32_t>;

// gpt2.json was trained by the library, on sample.txt.
TEST(TrainBpe, IsAsInTheLibrary) {
  const std::vector<std::string> texts = {test::text_of(test::kGolden / "sample.txt")};
  const nlohmann::json library = nlohmann::json::parse(test::text_of(test::kGolden / "gpt2.json"));
  const nlohmann::json trained = nlohmann::json::parse(train_bpe(texts, {.vocabulary = 420}));
  EXPECT_EQ(trained["model"]["vocab"], library["model"]["vocab"]);
  std::vector<std::string> merges;
  for (const nlohmann::json& pair : trained["model"]["merges"])
    merges.push_back(pair[0].get<std::string>() + " " + pair[1].get<std::string>());
  EXPECT_EQ(merges, library["model"]["merges"].get<std::vector<std::string>>());
  EXPECT_GE(merges.size(), 100u);
}

TEST(TrainBpe, IsTheSameForTextsInAnyOrder) {
  std::vector<std::string> texts = test::golden_texts();
  const BpeTraining options = {.vocabulary = 600, .special_tokens = {"<s>", "</s>"}};
  const std::string forward = train_bpe(texts, options);
  std::ranges::reverse(texts);
  EXPECT_EQ(train_bpe(texts, options), forward);
}

TEST(TrainBpe, MergesTheMostFrequentPairAndTheLowerOfEquals) {
  const std::vector<std::string> texts = {"xyxyxy xyz", "ab"};
  const std::string file = train_bpe(texts, {.vocabulary = 259, .special_tokens = {}, .least_count = 1});
  const nlohmann::json merges = nlohmann::json::parse(file)["model"]["merges"];
  EXPECT_EQ(merges[0], (nlohmann::json{"x", "y"}));
  EXPECT_EQ(merges[1], (nlohmann::json{"xy", "xy"}));
  EXPECT_EQ(merges[2], (nlohmann::json{"a", "b"}));
}

TEST(TrainBpe, StopsAtPairsThatAreTooRare) {
  const std::vector<std::string> texts = {"abababab cd"};
  const Tokenizer tokenizer = Tokenizer::parse(train_bpe(texts, {.vocabulary = 1000, .special_tokens = {}}));
  EXPECT_EQ(tokenizer.vocabulary(), 258);  // ab and abab; all others occur once
}

TEST(TrainBpe, MakesATokenizerThatInverts) {
  const std::vector<std::string> texts = test::golden_texts();
  const BpeTraining options = {.vocabulary = 700, .special_tokens = {"<|endoftext|>", "a"}};
  const Tokenizer tokenizer = Tokenizer::parse(train_bpe(texts, options));
  EXPECT_EQ(tokenizer.id_of("<|endoftext|>"), 0);
  EXPECT_EQ(tokenizer.encode("<|endoftext|>"), (Ids{0}));
  for (const std::string& text : texts) {
    const std::string once = tokenizer.decode(tokenizer.encode(text));
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(once)), once);
  }
}

// No merge reaches into a special token.
TEST(TrainBpe, DoesNotLearnSpecialTokens) {
  const std::vector<std::string> texts(9, "<|endoftext|>");
  const nlohmann::json file = nlohmann::json::parse(train_bpe(texts, {.vocabulary = 300}));
  EXPECT_TRUE(file["model"]["merges"].empty());
}

TEST(TrainBpe, RefusesWrongOptions) {
  const std::vector<std::string> texts = {"text"};
  EXPECT_THROW(train_bpe(texts, {.vocabulary = 256}), UsageError);
  EXPECT_THROW(train_bpe(texts, {.vocabulary = 1 << 30}), UsageError);
  EXPECT_THROW(train_bpe(texts, {.vocabulary = 300, .special_tokens = {""}}), UsageError);
  EXPECT_THROW(train_bpe(texts, {.vocabulary = 300, .special_tokens = {"a", "a"}}), UsageError);
  EXPECT_THROW(train_bpe(texts, {.vocabulary = 300, .special_tokens = {"\xff"}}), UsageError);
  EXPECT_THROW(train_bpe(texts, {.vocabulary = 300, .least_count = 0}), UsageError);
}

}  // namespace
}  // namespace tessera
