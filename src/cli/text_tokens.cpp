#include "src/cli/text_tokens.h"

#include <algorithm>

#include "tessera/error.h"

namespace tessera::cli {

std::vector<std::int32_t> TextTokens::encode(std::string_view text, bool around, bool special) const {
  if (tokenizer_)
    return tokenizer_->encode(text, {.add_special_tokens = around, .find_special_tokens = special});
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::vector<std::int32_t> TextTokens::prefix() const {
  if (!tokenizer_) return {};
  constexpr std::string_view kText = "a";
  const std::vector<std::int32_t> own = encode(kText);
  const std::vector<std::int32_t> around = encode(kText, true);
  const auto found = std::search(around.begin(), around.end(), own.begin(), own.end());
  if (found == around.end())
    throw UnsupportedError(
        "the tokenizer's post_processor changes the text's own tokens; only tokens around a text are "
        "supported");
  return {around.begin(), found};
}

std::optional<std::int32_t> TextTokens::end_of_text() const {
  if (!tokenizer_) return std::nullopt;
  for (const char* token : {"<|endoftext|>", "<|end_of_text|>", "</s>"})
    if (const auto id = tokenizer_->id_of(token)) return id;
  return std::nullopt;
}

std::string TextTokens::decode(std::span<const std::int32_t> tokens) const {
  if (tokenizer_) return tokenizer_->decode(tokens, true);
  std::string text;
  for (const std::int32_t token : tokens) text += static_cast<char>(token);
  return text;
}

}  // namespace tessera::cli
