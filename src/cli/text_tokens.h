// Text as the tokens of a model: by a tokenizer, or byte by byte.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tokenizer.h"

namespace tessera::cli {

// U+FFFD, which stands in decoded text for bytes that make no character.
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

class TextTokens {
 public:
  TextTokens() = default;  // every byte is a token of 0 to 255
  explicit TextTokens(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  bool are_bytes() const { return !tokenizer_; }
  const std::optional<Tokenizer>& tokenizer() const { return tokenizer_; }

  // What `text` spells is text, unless `special` asks that special tokens in it are found. `around` adds the
  // tokens that the tokenizer puts around a text, such as <s>. Throws as Tokenizer::encode() does.
  std::vector<std::int32_t> encode(std::string_view text, bool around = false, bool special = false) const;
  // The tokens that the tokenizer puts in front of every text, such as <s>; none of bytes.
  std::vector<std::int32_t> prefix() const;
  // The token that ends a text: the first that the tokenizer has of <|endoftext|>, <|end_of_text|>, </s>.
  std::optional<std::int32_t> end_of_text() const;
  // The text of ids. Of bytes it may be any bytes; of a tokenizer it is UTF-8, without special tokens.
  std::string decode(std::span<const std::int32_t> tokens) const;

 private:
  std::optional<Tokenizer> tokenizer_;
};

}  // namespace tessera::cli
