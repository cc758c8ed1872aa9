// `tessera tokenizer`: a trained tokenizer makes a token file of texts, and the text of it again.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tessera/data.h"
#include "tessera/tokenizer.h"
#include "tests/cli/tool.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

class TokenizerTool : public Tool {
 protected:
  Result train_tokenizer() {
    return run(
        {"tokenizer", "train", text_, "--vocabulary", "300", "--special", "<end>", "--out", tokenizer_});
  }
  void SetUp() override {
    Tool::SetUp();
    text_ = folder_.file("text.txt");
    tokenizer_ = folder_.file("tokenizer.json");
    tokens_ = folder_.file("tokens.bin");
  }
  void expect_mistake(const Arguments& arguments, int status, const std::string& part) {
    const Result result = run(arguments);
    EXPECT_EQ(result.status, status);
    EXPECT_THAT(result.err, HasSubstr(part));
    EXPECT_FALSE(std::filesystem::exists(tokens_));
  }

  std::string text_, tokenizer_, tokens_;
};

TEST_F(TokenizerTool, GoesThereAndBack) {
  ASSERT_EQ(train_tokenizer().status, 0);
  const Tokenizer tokenizer = Tokenizer::open(tokenizer_);
  const Result encoded =
      run({"tokenizer", "encode", tokenizer_, text_, text_, "--between", "<end>", "--out", tokens_});
  ASSERT_EQ(encoded.status, 0) << encoded.err;
  const TokenSource source = TokenSource::open(tokens_, tokenizer.vocabulary());
  std::vector<std::int32_t> ids(static_cast<std::size_t>(source.numel()));
  source.read(0, ids);
  std::vector<std::int32_t> once = tokenizer.encode(read(text_));
  once.push_back(0);
  std::vector<std::int32_t> expected = once;
  expected.insert(expected.end(), once.begin(), once.end());
  EXPECT_EQ(ids, expected);

  const std::string again = folder_.file("again.txt");
  ASSERT_EQ(run({"tokenizer", "decode", tokenizer_, tokens_, "--out", again}).status, 0);
  EXPECT_EQ(read(again), read(text_) + "<end>" + read(text_) + "<end>");
}

#ifdef TESSERA_HAS_PREPARE
// Their texts decide the tokenizer, not the braces and names around them.
TEST_F(TokenizerTool, ReadsTextsOfJsonLines) {
  ASSERT_EQ(train_tokenizer().status, 0);
  const std::string plain = read(tokenizer_), lines = folder_.file("lines.jsonl");
  std::ofstream(lines) << json({{"body", read(text_)}}) << "\n";
  const Arguments words = {"tokenizer", "train", lines,   "--vocabulary", "300",
                           "--special", "<end>", "--out", tokenizer_};
  Arguments named = words;
  named.insert(named.end(), {"--field", "body"});
  EXPECT_THAT(run(words).err, HasSubstr("line 1 of '" + lines + "' has no field 'text'; --field"));
  ASSERT_EQ(run(named).status, 0);
  EXPECT_EQ(read(tokenizer_), plain);
}
#endif

TEST_F(TokenizerTool, NamesWhatIsWrong) {
  ASSERT_EQ(train_tokenizer().status, 0);
  expect_mistake({"tokenizer", "train", text_, "--vocabulary", "20", "--out", tokens_}, 1,
                 "the vocabulary is 20");
  expect_mistake({"tokenizer", "train", text_, "--out", tokens_}, 2, "needs --vocabulary");
  expect_mistake({"tokenizer", "encode", tokenizer_, "/no/text", "--out", tokens_}, 1,
                 "the input '/no/text'");
  expect_mistake({"tokenizer", "encode", text_, text_, "--out", tokens_}, 1, "is not JSON");
  expect_mistake({"tokenizer", "encode", tokenizer_, text_, "--between", "<x>", "--out", tokens_}, 1,
                 "--between");
  expect_mistake({"tokenizer", "encode", tokenizer_, text_, "--out", text_}, 1, "which is an input");
  expect_mistake({"tokenizer", "decode", tokenizer_, text_, "--out", tokens_}, 1, "a token file is wanted");
  expect_mistake({"tokenizer"}, 2, "a command is missing");
  const std::string empty = folder_.write("empty.txt", {});
  expect_mistake({"tokenizer", "train", empty, "--vocabulary", "300", "--out", tokens_}, 1,
                 "there is no text in '" + empty + "'");
}

}  // namespace
}  // namespace tessera::testing
