// The model of a byte pair encoding: splits a word into tokens of its vocabulary. Knows nothing of how a text
// is cut into words.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/text/merge_table.h"
#include "src/text/word_cache.h"

namespace tessera::text {

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using Vocabulary = std::unordered_map<std::string, std::int32_t, StringHash, std::equal_to<>>;

struct BpeConfig {
  Vocabulary vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;  // the first has the lowest rank
  std::string unknown_token = {};                           // "": characters without a token are left out
  bool fuse_unknown = false;                                // one token for neighbouring unknown characters
  bool byte_fallback = false;  // a character without a token becomes <0x..> tokens of its bytes, if all exist
  bool ignore_merges = false;  // a word in the vocabulary is one token, whatever the merges
  bool byte_level = false;  // words are given as bytes, and the vocabulary in characters that stand for bytes
};

// Memory that encode_word() reuses.
struct BpeScratch {
  WordCache cache;
  std::vector<std::int32_t> ids;
  MergeScratch merges;
};

class BpeModel {
 public:
  // Throws UsageError for a merge whose tokens are not in the vocabulary.
  explicit BpeModel(BpeConfig config);

  // Appends the tokens of a word, which may be empty. Throws UsageError if the unknown token is needed and
  // missing.
  void encode_word(std::string_view word, BpeScratch& scratch, std::vector<std::int32_t>& ids) const;

  std::int64_t vocabulary_count() const { return static_cast<std::int64_t>(config_.vocabulary.size()); }
  std::optional<std::int32_t> id_of(std::string_view token) const;
  // Null if no token has the id.
  const std::string* token_of(std::int32_t id) const;
  std::int32_t largest_id() const { return static_cast<std::int32_t>(tokens_.size()) - 1; }

 private:
  class Symbols;
  void set_merges();
  void set_characters();
  void set_space();
  void encode_part(std::string_view word, BpeScratch& scratch, std::vector<std::int32_t>& ids) const;
  void merge_part(std::string_view word, BpeScratch& scratch) const;
  const std::int32_t* whole_word(std::string_view word) const;
  std::int32_t character_id(char32_t code_point) const {
    return code_point < characters_.size() ? characters_[code_point] : -1;
  }

  BpeConfig config_;
  MergeTable merges_;
  std::vector<const std::string*> tokens_;  // by id; null where there is none
  std::vector<std::int32_t>
      characters_;                      // by code point, or by byte if byte_level; -1 where there is no token
  std::vector<std::int32_t> fallback_;  // by byte, -1 where there is no <0x..> token
  std::int32_t unknown_ = -1;
  Vocabulary words_;           // with ignore_merges and byte_level: the vocabulary in bytes
  bool cut_at_space_ = false;  // no token holds ▁ behind another character
};

}  // namespace tessera::text
