// Training of a byte pair encoding: the two neighbouring tokens that occur most often become one token, again
// and again (Sennrich et al., arXiv 1508.07909). The order of merges is that of the tokenizers library.
#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <queue>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/text/byte_characters.h"
#include "src/text/utf8_text.h"
#include "src/text/word_counts.h"
#include "tessera/error.h"
#include "tessera/tokenizer.h"

namespace tessera {

namespace {

constexpr int kBytes = 256;
constexpr std::int64_t kMostIds = std::int64_t{1} << 24;  // what Tokenizer reads

struct Pair {
  std::int32_t left = 0;
  std::int32_t right = 0;
  auto operator<=>(const Pair&) const = default;
};

struct PairHash {
  std::size_t operator()(const Pair& pair) const {
    const std::uint64_t bits =
        std::uint64_t{static_cast<std::uint32_t>(pair.left)} << 32U | static_cast<std::uint32_t>(pair.right);
    return static_cast<std::size_t>((bits * 0x9e3779b97f4a7c15U) >> 16U);
  }
};

class BpeTrainer {
 public:
  // `tokens` are the first ids: special tokens and the bytes, whose ids are `bytes`.
  BpeTrainer(std::vector<std::string> tokens, const std::vector<std::int32_t>& bytes)
      : tokens_(std::move(tokens)) {
    for (std::size_t id = 0; id < tokens_.size(); ++id)
      ids_.emplace(tokens_[id], static_cast<std::int32_t>(id));
    byte_ids_ = bytes;
  }

  void add(const text::WordCount& word) {
    const auto index = static_cast<std::uint32_t>(words_.size());
    words_.push_back({.count = word.count});
    std::vector<std::int32_t>& ids = words_.back().ids;
    for (const char byte : word.word) ids.push_back(byte_ids_[static_cast<std::uint8_t>(byte)]);
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) change({ids[i], ids[i + 1]}, word.count, index);
  }

  void train(std::size_t vocabulary, std::int64_t least_count) {
    push_changed();
    while (tokens_.size() < vocabulary && !queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const std::int64_t count = pairs_.at(top.pair).count;
      if (count != top.count) {  // it has changed since it was pushed
        if (count >= least_count) queue_.push({.count = count, .pair = top.pair});
        continue;
      }
      if (count < least_count) return;
      merge(top.pair);
      push_changed();
    }
  }

  const std::vector<std::string>& tokens() const { return tokens_; }
  const std::vector<Pair>& merges() const { return merges_; }

 private:
  struct Word {
    std::vector<std::int32_t> ids = {};
    std::int64_t count = 0;
  };
  struct Occurrences {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words = {};  // indices; a word may have lost the pair since
  };
  struct Candidate {
    std::int64_t count = 0;
    Pair pair = {};
    // The top of the queue has the highest count, and of equal counts the lowest pair.
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void change(Pair pair, std::int64_t count, std::uint32_t word) {
    Occurrences& occurrences = pairs_[pair];
    occurrences.count += count;
    if (count < 0) return;
    if (occurrences.words.empty() || occurrences.words.back() != word) occurrences.words.push_back(word);
    if (changed_.empty() || changed_.back() != pair) changed_.push_back(pair);
  }

  void push_changed() {
    std::ranges::sort(changed_);
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
    for (const Pair pair : changed_) queue_.push({.count = pairs_.at(pair).count, .pair = pair});
    changed_.clear();
  }

  void merge(Pair pair) {
    const std::string token =
        tokens_[static_cast<std::size_t>(pair.left)] + tokens_[static_cast<std::size_t>(pair.right)];
    const auto [entry, is_new] = ids_.try_emplace(token, static_cast<std::int32_t>(tokens_.size()));
    if (is_new) tokens_.push_back(token);
    merges_.push_back(pair);
    const std::vector<std::uint32_t> words = std::move(pairs_.at(pair).words);
    for (const std::uint32_t word : words) merge_in(word, pair, entry->second);
    pairs_.at(pair) = {};
  }

  void merge_in(std::uint32_t index, Pair pair, std::int32_t merged) {
    std::vector<std::int32_t>& ids = words_[index].ids;
    const std::int64_t count = words_[index].count;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < ids.size(); ++i, ++kept) {
      if (ids[i] != pair.left || i + 1 == ids.size() || ids[i + 1] != pair.right) {
        ids[kept] = ids[i];
        continue;
      }
      ++i;
      ids[kept] = merged;
      if (kept > 0) {
        change({ids[kept - 1], pair.left}, -count, index);
        change({ids[kept - 1], merged}, count, index);
      }
      if (i + 1 < ids.size()) {
        change({pair.right, ids[i + 1]}, -count, index);
        change({merged, ids[i + 1]}, count, index);
      }
    }
    ids.resize(kept);
  }

  std::vector<std::string> tokens_;  // by id, in GPT-2's characters for bytes
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<std::int32_t> byte_ids_;
  std::vector<Word> words_;
  std::unordered_map<Pair, Occurrences, PairHash> pairs_;
  std::vector<Pair> changed_;
  std::priority_queue<Candidate> queue_;
  std::vector<Pair> merges_;
};

void check(const BpeTraining& options) {
  std::set<std::string> seen;
  for (const std::string& token : options.special_tokens) {
    if (token.empty() || !text::is_utf8(token)) throw UsageError("a special token is empty or not UTF-8");
    if (!seen.insert(token).second)
      throw UsageError(fmt::format("the special token '{}' is given twice", token));
  }
  const auto least = static_cast<std::int64_t>(kBytes + options.special_tokens.size());
  if (options.vocabulary < least || options.vocabulary > kMostIds)
    throw UsageError(fmt::format(
        "the vocabulary is {}; from {}, which are {} bytes and {} special tokens, to {} is wanted",
        options.vocabulary, least, kBytes, options.special_tokens.size(), kMostIds));
  if (options.least_count < 1)
    throw UsageError(fmt::format("least_count is {}; 1 or more is wanted", options.least_count));
}

// The special tokens, then the characters of bytes in the order of code points.
BpeTrainer begin(const std::vector<std::string>& special_tokens) {
  std::vector<std::string> tokens = special_tokens;
  std::vector<std::pair<char32_t, std::uint8_t>> bytes;
  for (int byte = 0; byte < kBytes; ++byte)
    bytes.emplace_back(text::character_of_byte(static_cast<std::uint8_t>(byte)),
                       static_cast<std::uint8_t>(byte));
  std::ranges::sort(bytes);
  std::vector<std::int32_t> ids(kBytes);
  for (const auto& [character, byte] : bytes) {
    std::string token;
    text::append_code_point(character, token);
    auto place = std::ranges::find(tokens, token);  // a special token may be a byte's character
    if (place == tokens.end()) place = tokens.insert(tokens.end(), token);
    ids[byte] = static_cast<std::int32_t>(place - tokens.begin());
  }
  return {std::move(tokens), ids};
}

nlohmann::ordered_json added_tokens(const std::vector<std::string>& special_tokens) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (std::size_t id = 0; id < special_tokens.size(); ++id)
    list.push_back({{"id", id},
                    {"content", special_tokens[id]},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", false},
                    {"special", true}});
  return list;
}

nlohmann::ordered_json model_of(const BpeTrainer& trainer) {
  const std::vector<std::string>& tokens = trainer.tokens();
  // Ids in their order. An ordered_json looks through all keys for each new one; its list of entries does
  // not.
  nlohmann::ordered_json vocabulary = nlohmann::ordered_json::object();
  auto& entries = vocabulary.get_ref<nlohmann::ordered_json::object_t&>();
  for (std::size_t id = 0; id < tokens.size(); ++id)
    static_cast<std::vector<nlohmann::ordered_json::object_t::value_type>&>(entries).emplace_back(tokens[id],
                                                                                                  id);
  nlohmann::ordered_json merges = nlohmann::ordered_json::array();
  const auto token = [&](std::int32_t id) { return tokens[static_cast<std::size_t>(id)]; };
  for (const Pair pair : trainer.merges()) merges.push_back({token(pair.left), token(pair.right)});
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocabulary)},
          {"merges", std::move(merges)}};
}

nlohmann::ordered_json byte_level() {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
}

}  // namespace

std::string train_bpe(std::span<const std::string> texts, const BpeTraining& options) {
  check(options);
  BpeTrainer trainer = begin(options.special_tokens);
  for (const text::WordCount& word : text::count_words(texts, options.special_tokens)) trainer.add(word);
  trainer.train(static_cast<std::size_t>(options.vocabulary), options.least_count);
  const nlohmann::ordered_json file = {
      {"version", "1.0"},          {"truncation", nullptr},
      {"padding", nullptr},        {"added_tokens", added_tokens(options.special_tokens)},
      {"normalizer", nullptr},     {"pre_tokenizer", byte_level()},
      {"post_processor", nullptr}, {"decoder", byte_level()},
      {"model", model_of(trainer)}};
  return file.dump(1) + "\n";
}

}  // namespace tessera
