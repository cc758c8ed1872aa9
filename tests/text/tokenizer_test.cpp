// What Tokenizer promises beside the golden ids: what it refuses, and how its parts go together.
#include "tessera/tokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tessera/error.h"
#include "tests/text/golden_files.h"

namespace tessera {
namespace {

using Ids = std::vector<std::int32_t>;

// A model of the letters a, b, c and of "ab".
nlohmann::json small_file() {
  return {{"added_tokens", nlohmann::json::array()},
          {"model",
           {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}}}, {"merges", {"a b"}}}}};
}

Tokenizer parse(const nlohmann::json& file) { return Tokenizer::parse(file.dump(), "t.json"); }

// The message with which a file is refused.
std::string refusal(const nlohmann::json& file) {
  try {
    parse(file);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

void expect_refusal(const nlohmann::json& file, const std::string& part) {
  const std::string message = refusal(file);
  EXPECT_NE(message.find(part), message.npos) << "'" << message << "' says nothing of '" << part << "'";
  EXPECT_TRUE(message.starts_with("t.json: ")) << message;
}

nlohmann::json with(const char* key, const nlohmann::json& value) {
  nlohmann::json file = small_file();
  file[key] = value;
  return file;
}

nlohmann::json with_model(const char* key, const nlohmann::json& value) {
  nlohmann::json file = small_file();
  file["model"][key] = value;
  return file;
}

TEST(Tokenizer, ReadsBothFormsOfMerges) {
  EXPECT_EQ(parse(small_file()).encode("abcab"), (Ids{3, 2, 3}));
  const nlohmann::json pairs = nlohmann::json::parse(R"([["a", "b"]])");
  EXPECT_EQ(parse(with_model("merges", pairs)).encode("abcab"), (Ids{3, 2, 3}));
}

TEST(Tokenizer, LeavesOutWhatHasNoTokenWithoutUnknownToken) {
  EXPECT_EQ(parse(small_file()).encode("axb"), (Ids{3}));  // as in the library: the neighbours merge
}

TEST(Tokenizer, GivesUnknownTokens) {
  nlohmann::json file = with_model("unk_token", "c");
  EXPECT_EQ(parse(file).encode("axyb"), (Ids{0, 2, 2, 1}));
  file["model"]["fuse_unk"] = true;
  EXPECT_EQ(parse(file).encode("axyb"), (Ids{0, 2, 1}));
  EXPECT_THROW(parse(with_model("unk_token", "<unk>")).encode("x"), UsageError);
}

TEST(Tokenizer, IgnoresMergesForWordsOfTheVocabulary) {
  nlohmann::json file = with_model("merges", nlohmann::json::array());
  EXPECT_EQ(parse(file).encode("ab"), (Ids{0, 1}));
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(parse(file).encode("ab"), (Ids{3}));
}

TEST(Tokenizer, NamesIdsAndTokens) {
  nlohmann::json file =
      with("added_tokens", nlohmann::json::parse(R"([{"content": "<s>", "special": true, "id": 4}])"));
  const Tokenizer tokenizer = parse(file);
  EXPECT_EQ(tokenizer.vocabulary(), 5);
  EXPECT_EQ(tokenizer.id_of("<s>"), 4);
  EXPECT_EQ(tokenizer.id_of("ab"), 3);
  EXPECT_EQ(tokenizer.id_of("x"), std::nullopt);
  EXPECT_EQ(tokenizer.token_of(4), "<s>");
  EXPECT_EQ(tokenizer.token_of(0), "a");
  EXPECT_EQ(tokenizer.token_of(5), std::nullopt);
  EXPECT_EQ(tokenizer.token_of(-1), std::nullopt);
  EXPECT_EQ(tokenizer.decode(Ids{4, 3, -7, 99, 2}), "<s> ab c");  // no decoder: spaces between tokens
  EXPECT_EQ(tokenizer.decode(Ids{4, 3}, true), "ab");
}

TEST(Tokenizer, AppendsToIds) {
  Ids ids = {7};
  parse(small_file()).encode("ab", {}, ids);
  EXPECT_EQ(ids, (Ids{7, 3}));
}

TEST(Tokenizer, RefusesOtherKindsByTheirType) {
  expect_refusal(with_model("type", "Unigram"), "the model 'Unigram' is not supported");
  expect_refusal(with_model("type", "WordPiece"), "WordPiece");
  expect_refusal(with("normalizer", {{"type", "Lowercase"}}),
                 "the normalizer 'Lowercase' is not supported; supported are");
  expect_refusal(with("pre_tokenizer", {{"type", "BertPreTokenizer"}}), "BertPreTokenizer");
  expect_refusal(with("decoder", {{"type", "WordPiece"}}), "the decoder 'WordPiece'");
  expect_refusal(with("post_processor", {{"type", "New"}}), "the post-processor 'New'");
  expect_refusal(with_model("end_of_word_suffix", "</w>"), "'</w>'");
  expect_refusal(with_model("continuing_subword_prefix", "##"), "'##'");
  expect_refusal(with_model("dropout", 0.1), "dropout");
}

TEST(Tokenizer, RefusesWhatIsBroken) {
  EXPECT_THROW(Tokenizer::parse("{"), UsageError);
  EXPECT_THROW(Tokenizer::parse("[]"), UsageError);
  EXPECT_THROW(Tokenizer::parse("{}"), UsageError);
  EXPECT_THROW(Tokenizer::open("/no/such/tokenizer.json"), EnvironmentError);
  expect_refusal(with_model("vocab", {"a"}), "vocab");
  expect_refusal(with_model("vocab", {{"a", -1}}), "'a' is not a whole number");
  expect_refusal(with_model("vocab", {{"a", 1 << 24}}), "not below 16777216");
  expect_refusal(with_model("merges", {"a  b"}), "'a  b'");
  expect_refusal(with_model("merges", {"a c"}), "'ac', which is not in the vocabulary");
  expect_refusal(with("pre_tokenizer", {{"type", "Split"}, {"behavior", "Isolated"}}),
                 "'pattern' is missing");
  expect_refusal(
      with("pre_tokenizer", {{"type", "Split"}, {"behavior", "Never"}, {"pattern", {{"Regex", "a"}}}}),
      "'Never'");
  const nlohmann::json byte_level = {{"type", "ByteLevel"}}, digits = {{"type", "Digits"}};
  expect_refusal(with("pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {byte_level, digits}}}),
                 "'Digits' follows 'ByteLevel'");
}

// A text whose bytes are UTF-8 comes back where nothing normalizes it.
TEST(Tokenizer, DecodingInvertsEncoding) {
  for (const char* family : {"gpt2", "llama3", "tekken"}) {
    const Tokenizer tokenizer = Tokenizer::open(test::kGolden / (std::string(family) + ".json"));
    for (const std::string& text : test::golden_texts()) {
      const std::string once = tokenizer.decode(tokenizer.encode(text));
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(once)), once);
    }
  }
}

TEST(Tokenizer, OpensAFolder) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "tokenizer_test_folder";
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(test::kGolden / "gpt2.json", folder / "tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(Tokenizer::open(folder).vocabulary(), Tokenizer::open(test::kGolden / "gpt2.json").vocabulary());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tessera
