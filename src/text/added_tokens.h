// Tokens that are found in a text before it is split into words: special tokens, and others that were added
// to a vocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/text/bpe_model.h"

namespace tessera::text {

// The fields of "added_tokens" in a tokenizer.json.
struct AddedToken {
  std::string content;
  bool single_word = false;  // not between characters of words
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space behind it
  bool normalized = false;   // is looked for in the normalized text
  bool special = false;      // may be left out when decoding
  bool operator==(const AddedToken&) const = default;
};

// A piece of a text. `id` is that of an added token, or -1.
struct Piece {
  std::string_view text;
  std::int32_t id = -1;
};

// Finds texts, at each place the longest.
class Trie {
 public:
  void add(std::string_view text, std::int32_t id);
  struct Found {
    std::size_t begin = 0, end = 0;
    std::int32_t id = -1;  // -1: nothing was found
  };
  // The first text at or behind `from`.
  Found find(std::string_view text, std::size_t from) const;

 private:
  struct Node {
    std::int32_t id = -1;
    std::vector<std::pair<char, std::int32_t>> next;
  };
  Found longest_at(std::string_view text, std::size_t begin) const;
  std::int32_t child(std::int32_t node, char byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> begins_ = {};
};

class AddedTokens {
 public:
  using Normalize = std::function<void(std::string& text)>;
  using Use = std::function<void(const Piece& piece)>;

  // Gives each token its id: that in the model's vocabulary, else the next free one. `normalize` may be
  // empty.
  AddedTokens(const std::vector<AddedToken>& tokens, const BpeModel& model, const Normalize& normalize);

  bool has_normalized() const { return has_normalized_; }
  // Call use(piece) for each piece of the text, in order: tokens that are looked for before normalizing, or
  // behind. With `only_ordinary`, special tokens are text.
  void split(std::string_view text, bool only_ordinary, const Use& use) const;
  void split_normalized(std::string_view text, bool only_ordinary, const Use& use) const;

  // Null if no added token has the id. What decoding sees: the normalized content.
  const std::string* token_of(std::int32_t id) const;
  const std::string* content_of(std::int32_t id) const;
  // -1 if there is none.
  std::int32_t id_of(std::string_view content) const;
  bool is_special(std::string_view content) const;
  std::int32_t largest_id() const { return largest_id_; }

 private:
  struct Entry {
    AddedToken token;
    std::string normalized;
  };
  void add(const AddedToken& token, std::int32_t id, const Normalize& normalize);
  void split_by(const Trie& trie, std::string_view text, bool only_ordinary, const Use& use) const;

  Vocabulary ids_;  // by content
  std::unordered_map<std::int32_t, Entry> entries_;
  Trie plain_, normalized_;
  bool has_plain_ = false, has_normalized_ = false;
  std::int32_t largest_id_ = -1;
};

}  // namespace tessera::text
