#include "src/text/bpe_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/text/byte_characters.h"
#include "src/text/utf8_text.h"
#include "tessera/error.h"

namespace tessera::text {

namespace {

constexpr std::string_view kSpace = "\u2581";  // what stands for a space in vocabularies of SentencePiece

// Whether ▁ follows another character in the token.
bool has_inner_space(std::string_view token) {
  const std::size_t word = [&] {
    std::size_t i = 0;
    while (token.substr(i).starts_with(kSpace)) i += kSpace.size();
    return i;
  }();
  return token.find(kSpace, word) != token.npos;
}

bool is_one_character(std::string_view token) {
  return !token.empty() && character_bytes(token[0]) == token.size();
}

}  // namespace

// The tokens of single characters, before merging. Unknown characters wait, because neighbours may be fused.
class BpeModel::Symbols {
 public:
  Symbols(const BpeModel& model, std::vector<std::int32_t>& ids) : model_(model), ids_(ids) {}

  void add(std::int32_t id, std::string_view character) {
    if (id >= 0) {
      end_unknown();
      ids_.push_back(id);
    } else if (!add_bytes(character)) {
      add_unknown();
    }
  }
  void end_unknown() {
    if (unknown_) ids_.push_back(model_.unknown_);
    unknown_ = false;
  }

 private:
  // An unknown token that waits stays behind these bytes, as in the tokenizers library.
  bool add_bytes(std::string_view character) {
    if (!model_.config_.byte_fallback) return false;
    const auto id_of = [&](char byte) { return model_.fallback_[static_cast<std::uint8_t>(byte)]; };
    if (std::ranges::any_of(character, [&](char byte) { return id_of(byte) < 0; })) return false;
    for (const char byte : character) ids_.push_back(id_of(byte));
    return true;
  }
  void add_unknown() {
    if (model_.config_.unknown_token.empty()) return;
    if (model_.unknown_ < 0)
      throw UsageError(fmt::format(
          "the text has a character without a token, and the tokenizer's unk_token '{}' is not in "
          "its vocabulary",
          model_.config_.unknown_token));
    if (!model_.config_.fuse_unknown) end_unknown();
    unknown_ = true;
  }

  const BpeModel& model_;
  std::vector<std::int32_t>& ids_;
  bool unknown_ = false;
};

BpeModel::BpeModel(BpeConfig config) : config_(std::move(config)) {
  std::int32_t largest = -1;
  for (const auto& [token, id] : config_.vocabulary) largest = std::max(largest, id);
  tokens_.resize(static_cast<std::size_t>(largest) + 1);
  for (const auto& [token, id] : config_.vocabulary) tokens_[static_cast<std::size_t>(id)] = &token;
  set_merges();
  set_characters();
  set_space();
  unknown_ = id_of(config_.unknown_token).value_or(-1);
}

void BpeModel::set_merges() {
  merges_ = MergeTable(config_.merges.size());
  std::uint32_t rank = 0;
  const auto require = [&](std::string_view token) {
    const std::optional<std::int32_t> id = id_of(token);
    if (!id)
      throw UsageError(
          fmt::format("merge {} needs the token '{}', which is not in the vocabulary", rank, token));
    return *id;
  };
  for (const auto& [left, right] : config_.merges) {
    const Merge merge{.rank = rank, .id = require(left + right)};
    merges_.set(require(left), require(right), merge);
    ++rank;
  }
}

void BpeModel::set_characters() {
  for (const auto& [token, id] : config_.vocabulary) {
    if (config_.byte_level && config_.ignore_merges)
      if (const std::optional<std::string> bytes = bytes_of_characters(token)) words_.emplace(*bytes, id);
    if (!is_one_character(token)) continue;
    char32_t place = first_code_point(token);
    if (config_.byte_level) {
      const std::optional<std::uint8_t> byte = byte_of_character(place);
      if (!byte) continue;
      place = *byte;
    }
    if (place >= characters_.size()) characters_.resize(place + 1, -1);
    characters_[place] = id;
  }
  for (int byte = 0; byte < 256; ++byte)
    fallback_.push_back(id_of(fmt::format("<0x{:02X}>", byte)).value_or(-1));
}

// No merge joins two words of a text if none makes a token with ▁ behind another character.
void BpeModel::set_space() {
  if (config_.byte_level || config_.ignore_merges || !id_of(kSpace)) return;
  const auto joins_words = [](const auto& merge) { return has_inner_space(merge.first + merge.second); };
  cut_at_space_ = std::ranges::none_of(config_.merges, joins_words);
}

std::optional<std::int32_t> BpeModel::id_of(std::string_view token) const {
  const auto found = config_.vocabulary.find(token);
  return found == config_.vocabulary.end() ? std::nullopt : std::optional(found->second);
}

const std::string* BpeModel::token_of(std::int32_t id) const {
  return id < 0 || id > largest_id() ? nullptr : tokens_[static_cast<std::size_t>(id)];
}

void BpeModel::encode_word(std::string_view word, BpeScratch& scratch, std::vector<std::int32_t>& ids) const {
  if (!cut_at_space_) return encode_part(word, scratch, ids);
  while (!word.empty()) {
    std::size_t end = 0;
    while (word.substr(end).starts_with(kSpace)) end += kSpace.size();
    end = std::min(word.find(kSpace, end), word.size());
    encode_part(word.substr(0, end), scratch, ids);
    word.remove_prefix(end);
  }
}

void BpeModel::encode_part(std::string_view word, BpeScratch& scratch, std::vector<std::int32_t>& ids) const {
  WordCache::Slot* slot = scratch.cache.slot_of(word);
  if (slot != nullptr && WordCache::holds(*slot, word)) {
    const std::span<const std::int32_t> tokens = slot->tokens();
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    return;
  }
  merge_part(word, scratch);
  if (slot != nullptr) WordCache::store(*slot, word, scratch.ids);
  ids.insert(ids.end(), scratch.ids.begin(), scratch.ids.end());
}

const std::int32_t* BpeModel::whole_word(std::string_view word) const {
  if (!config_.ignore_merges) return nullptr;
  const Vocabulary& words = config_.byte_level ? words_ : config_.vocabulary;
  const auto found = words.find(word);
  return found == words.end() ? nullptr : &found->second;
}

// Leaves the tokens in scratch.ids.
void BpeModel::merge_part(std::string_view word, BpeScratch& scratch) const {
  scratch.ids.clear();
  if (const std::int32_t* id = whole_word(word)) return scratch.ids.push_back(*id);
  Symbols symbols(*this, scratch.ids);
  while (!word.empty()) {
    const std::size_t bytes = config_.byte_level ? 1 : character_bytes(word[0]);
    const char32_t place = config_.byte_level ? static_cast<std::uint8_t>(word[0]) : first_code_point(word);
    // What falls back to bytes is the character of the vocabulary.
    const std::string_view character = word.substr(0, bytes);
    if (config_.byte_level && character_id(place) < 0)
      symbols.add(-1, characters_of_bytes(character));
    else
      symbols.add(character_id(place), character);
    word.remove_prefix(bytes);
  }
  symbols.end_unknown();
  merge_all(merges_, scratch.ids, scratch.merges);
}

}  // namespace tessera::text
