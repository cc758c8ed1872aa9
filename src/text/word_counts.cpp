#include "src/text/word_counts.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "src/text/added_tokens.h"
#include "src/text/bpe_model.h"
#include "src/text/pre_tokenizer.h"
#include "src/text/utf8_text.h"

namespace tessera::text {

namespace {

class Counter {
 public:
  explicit Counter(std::span<const std::string> special_tokens) {
    std::int32_t id = 0;
    for (const std::string& token : special_tokens) special_.add(token, id++);
  }

  void add(const std::string& text) {
    std::string repaired;
    if (!is_utf8(text)) append_utf8(text, repaired);
    const std::string_view all = repaired.empty() ? text : repaired;
    std::size_t begin = 0;
    for (Trie::Found found = special_.find(all, 0); found.id >= 0; found = special_.find(all, begin)) {
      add_ordinary(all.substr(begin, found.begin - begin));
      begin = found.end;
    }
    add_ordinary(all.substr(begin));
  }

  std::vector<WordCount> sorted() const {
    std::vector<WordCount> words;
    for (const auto& [word, count] : counts_) words.push_back({.word = word, .count = count});
    std::ranges::sort(words, {}, &WordCount::word);
    return words;
  }

 private:
  void add_ordinary(std::string_view text) {
    gpt2_.split(text, false, scratch_, [&](std::string_view word) {
      const auto found = counts_.find(word);
      if (found == counts_.end())
        counts_.emplace(word, 1);
      else
        ++found->second;
    });
  }

  PreTokenizer gpt2_ = PreTokenizer::gpt2();
  RegexScratch scratch_;
  Trie special_;
  std::unordered_map<std::string, std::int64_t, StringHash, std::equal_to<>> counts_;
};

}  // namespace

std::vector<WordCount> count_words(std::span<const std::string> texts,
                                   std::span<const std::string> special_tokens) {
  Counter counter(special_tokens);
  for (const std::string& text : texts) counter.add(text);
  return counter.sorted();
}

}  // namespace tessera::text
