// TextStream: what it shows is the text, in whole characters, up to the first stop word.
#include "src/cli/generate/text_stream.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "src/layout/utf8.h"
#include "tessera/tokenizer.h"

namespace tessera::cli {
namespace {

const std::string kText =
    "Grüße, 世界! 🙂🙃 End of line.\nÀ bientôt, καλημέρα "
    "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x94\xAC "
    "and more words, words, words.";

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = utf8_bytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

// Few merges: a character is several tokens.
TextTokens trained() {
  const std::vector<std::string> texts = {"and more words, words and words. End of line."};
  return TextTokens(Tokenizer::parse(train_bpe(texts, {.vocabulary = 280})));
}

// A character is as many tokens as it has bytes, unless a merge has it.
TextTokens with_bytes() {
  return TextTokens(Tokenizer::open(std::string(TESSERA_SOURCE_DIR) + "/tests/text/golden/mistral.json"));
}

struct Shown {
  std::string text, stopped;
};

// All tokens behind the first `prompt` ones, each as it comes.
Shown shown(const TextTokens& tokens, const std::vector<std::int32_t>& ids, std::size_t prompt,
            const std::vector<std::string>& stops = {}) {
  TextStream stream(tokens, stops, std::span(ids).first(prompt));
  Shown all;
  for (std::size_t i = prompt; i < ids.size() && stream.stopped().empty(); ++i) {
    const std::string more = stream.add(ids[i]);
    EXPECT_TRUE(is_utf8(more)) << i;
    all.text += more;
  }
  all.text += stream.finish();
  all.stopped = stream.stopped();
  return all;
}

TEST(TextStream, ShowsTheTextInWholeCharacters) {
  for (const TextTokens& tokens : {TextTokens(), trained(), with_bytes()}) {
    const std::vector<std::int32_t> ids = tokens.encode(kText);
    for (std::size_t prompt = 0; prompt < ids.size(); ++prompt) {
      const std::string before = tokens.decode(std::span(ids).first(prompt));
      if (!is_utf8(before) || kText.compare(0, before.size(), before) != 0) continue;  // within a character
      EXPECT_EQ(shown(tokens, ids, prompt).text, kText.substr(before.size())) << prompt;
    }
  }
}

TEST(TextStream, ShowsMostTokensAtOnce) {
  const TextTokens tokens = trained();
  const std::vector<std::int32_t> ids = tokens.encode("and more words, words, words.");
  TextStream stream(tokens, {}, {});
  for (const std::int32_t id : ids) EXPECT_FALSE(stream.add(id).empty());
}

// Runs of bytes that are longer than what decides the next token.
TEST(TextStream, ShowsLongRunsOfBytes) {
  const TextTokens tokens = with_bytes();
  for (const std::string text : {"\u1000\u1001\u1002\u1003\u1004\u1005\u1006\u1007\u1008\u1009x",
                                 "\U0001F468\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466x"}) {
    const std::vector<std::int32_t> ids = tokens.encode(text + text + text);
    ASSERT_GE(ids.size(), 40U);
    EXPECT_EQ(shown(tokens, ids, 0).text, text + text + text);
    EXPECT_EQ(shown(tokens, ids, ids.size() - 1).text, "x");
  }
}

// What never becomes a character is shown at the end, as the tokenizer shows it, or as the bytes that it is.
TEST(TextStream, ShowsBrokenCharactersAtTheEnd) {
  const TextTokens bytes, pieces = with_bytes();
  const auto told_and_rest = [](const TextTokens& tokens, const std::vector<std::int32_t>& ids) {
    TextStream stream(tokens, {}, {});
    std::string text;
    for (const std::int32_t id : ids) text += stream.add(id);
    return std::pair(text, stream.finish());
  };
  const std::string smile = "\U0001F642";
  std::vector<std::int32_t> ids = bytes.encode("ab" + smile);
  ids.pop_back();
  EXPECT_EQ(told_and_rest(bytes, ids), std::pair(std::string("ab"), std::string("\xF0\x9F\x99")));
  // Two of four bytes behind a character that was shown.
  std::vector<std::int32_t> cut = pieces.encode(smile + smile);
  cut.resize(cut.size() - 2);
  const auto [text, rest] = told_and_rest(pieces, cut);
  EXPECT_TRUE(text.ends_with(smile)) << text;
  EXPECT_EQ(rest, "\uFFFD\uFFFD");
}

TEST(TextStream, EndsBeforeTheFirstStopWord) {
  for (const TextTokens& tokens : {TextTokens(), trained(), with_bytes()}) {
    const std::vector<std::int32_t> ids = tokens.encode(kText);
    const auto until = [&](const std::string& stop) { return kText.substr(0, kText.find(stop)); };
    for (const std::string stop : {"words, words", "🙃", "line.\nÀ", "G", "words.", "ü"}) {
      const Shown some = shown(tokens, ids, 0, {"never", stop, "words, words, words, words"});
      EXPECT_EQ(some.text, until(stop)) << stop;
      EXPECT_EQ(some.stopped, stop);
    }
    EXPECT_EQ(shown(tokens, ids, 0, {"more", "End"}).text, until("End"));
    // Beginnings of stop words are text when nothing follows.
    const Shown none = shown(tokens, ids, 0, {"words.!", "words, words, words, w"});
    EXPECT_EQ(none.text, kText);
    EXPECT_EQ(none.stopped, "");
  }
}

}  // namespace
}  // namespace tessera::cli
