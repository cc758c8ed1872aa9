#include "src/cli/text_tokens.h"

namespace tessera::cli {

std::vector<std::int32_t> TextTokens::encode(std::string_view text, bool around) const {
  if (tokenizer_)
    return tokenizer_->encode(text, {.add_special_tokens = around, .find_special_tokens = false});
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string TextTokens::decode(std::span<const std::int32_t> tokens) const {
  if (tokenizer_) return tokenizer_->decode(tokens, true);
  std::string text;
  for (const std::int32_t token : tokens) text += static_cast<char>(token);
  return text;
}

}  // namespace tessera::cli
