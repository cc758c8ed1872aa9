// Counts the words of texts, for training.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::text {

struct WordCount {
  std::string word;  // bytes
  std::int64_t count = 0;
};

// The words into which GPT-2's pattern cuts the texts, in the order of their bytes. Special tokens end a word
// and belong to none. Bytes that are not UTF-8 are read as U+FFFD.
std::vector<WordCount> count_words(std::span<const std::string> texts,
                                   std::span<const std::string> special_tokens);

}  // namespace tessera::text
