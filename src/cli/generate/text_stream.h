// Tokens that come one by one, as text that can be shown while they come.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/cli/text_tokens.h"

namespace tessera::cli {

// What add() and finish() return is, one behind the other, the text behind the prompt: characters are never
// cut, and it ends before the first stop word.
class TextStream {
 public:
  // `tokens` and `stops` outlive it. Stop words are not empty.
  TextStream(const TextTokens& tokens, std::span<const std::string> stops,
             std::span<const std::int32_t> prompt);

  // The text that is certain with this token: what may go on as a character or a stop word is held back.
  std::string add(std::int32_t token);
  // The rest, when no token comes any more.
  std::string finish();
  // The stop word at which the text ended; empty: none so far.
  const std::string& stopped() const { return stopped_; }

 private:
  std::string take_certain(bool last);
  // Drops tokens that decide nothing of what comes.
  void shorten();

  const TextTokens& tokens_;
  std::span<const std::string> stops_;
  // The last tokens: those before `told_` have been shown, and are there because a tokenizer may decode a
  // token otherwise at the beginning of a text.
  std::vector<std::int32_t> window_;
  std::size_t told_ = 0;
  std::string held_;  // whole characters that may be the beginning of a stop word
  std::string stopped_;
};

}  // namespace tessera::cli
