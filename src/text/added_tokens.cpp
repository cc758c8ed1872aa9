#include "src/text/added_tokens.h"

#include <algorithm>

#include "src/text/unicode.h"
#include "src/text/utf8_text.h"

namespace tessera::text {

namespace {

bool ends_with_word(std::string_view text) {
  return !text.empty() && rust_word_set().contains(last_code_point(text));
}
bool starts_with_word(std::string_view text) {
  return !text.empty() && rust_word_set().contains(first_code_point(text));
}

// Where the white space at the end of `text` begins.
std::size_t space_at_end(std::string_view text) {
  while (!text.empty()) {
    const char32_t last = last_code_point(text);
    if (!space_set().contains(last)) break;
    std::string bytes;
    append_code_point(last, bytes);
    text.remove_suffix(bytes.size());
  }
  return text.size();
}

std::size_t space_at_start(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size() && space_set().contains(first_code_point(text.substr(end))))
    end += character_bytes(text[end]);
  return end;
}

// A token where it was found, with the white space that it takes.
struct Place {
  std::size_t begin = 0, end = 0;
};

bool is_whole_word(std::string_view text, const Trie::Found& found) {
  return !ends_with_word(text.substr(0, found.begin)) && !starts_with_word(text.substr(found.end));
}

Place place_of(std::string_view text, const Trie::Found& found, const AddedToken& token, std::size_t done) {
  Place place{.begin = found.begin, .end = found.end};
  if (token.lstrip) place.begin = std::max(space_at_end(text.substr(0, found.begin)), done);
  if (token.rstrip) place.end += space_at_start(text.substr(found.end));
  return place;
}

}  // namespace

void Trie::add(std::string_view text, std::int32_t id) {
  if (text.empty()) return;
  begins_[static_cast<std::uint8_t>(text[0])] = true;
  std::int32_t node = 0;
  for (const char byte : text) {
    std::int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<std::int32_t>(nodes_.size());
      nodes_[static_cast<std::size_t>(node)].next.emplace_back(byte, next);
      std::ranges::sort(nodes_[static_cast<std::size_t>(node)].next);
      nodes_.emplace_back();
    }
    node = next;
  }
  nodes_[static_cast<std::size_t>(node)].id = id;
}

std::int32_t Trie::child(std::int32_t node, char byte) const {
  const auto& next = nodes_[static_cast<std::size_t>(node)].next;
  const auto found = std::ranges::lower_bound(next, byte, {}, &std::pair<char, std::int32_t>::first);
  return found == next.end() || found->first != byte ? -1 : found->second;
}

Trie::Found Trie::find(std::string_view text, std::size_t from) const {
  for (; from < text.size(); ++from) {
    if (!begins_[static_cast<std::uint8_t>(text[from])]) continue;
    const Found found = longest_at(text, from);
    if (found.id >= 0) return found;
  }
  return {};
}

Trie::Found Trie::longest_at(std::string_view text, std::size_t begin) const {
  Found longest;
  std::int32_t node = 0;
  for (std::size_t i = begin; i < text.size(); ++i) {
    node = child(node, text[i]);
    if (node < 0) break;
    const std::int32_t id = nodes_[static_cast<std::size_t>(node)].id;
    if (id >= 0) longest = {.begin = begin, .end = i + 1, .id = id};
  }
  return longest;
}

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens, const BpeModel& model,
                         const Normalize& normalize) {
  auto next_id = static_cast<std::int32_t>(model.vocabulary_count());
  for (const AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    std::int32_t id = id_of(token.content);
    if (id < 0) id = model.id_of(token.content).value_or(-1);
    if (id < 0) id = next_id++;
    add(token, id, normalize);
  }
  for (const auto& [id, entry] : entries_) {
    const std::string& sought = entry.token.normalized ? entry.normalized : entry.token.content;
    (entry.token.normalized ? normalized_ : plain_).add(sought, id);
    (entry.token.normalized ? has_normalized_ : has_plain_) = true;
    largest_id_ = std::max(largest_id_, id);
  }
}

void AddedTokens::add(const AddedToken& token, std::int32_t id, const Normalize& normalize) {
  Entry entry{.token = token, .normalized = token.content};
  if (token.normalized && normalize) normalize(entry.normalized);
  ids_[token.content] = id;
  entries_[id] = std::move(entry);
}

void AddedTokens::split(std::string_view text, bool only_ordinary, const Use& use) const {
  if (has_plain_) return split_by(plain_, text, only_ordinary, use);
  use({.text = text});
}

void AddedTokens::split_normalized(std::string_view text, bool only_ordinary, const Use& use) const {
  if (has_normalized_) return split_by(normalized_, text, only_ordinary, use);
  use({.text = text});
}

void AddedTokens::split_by(const Trie& trie, std::string_view text, bool only_ordinary,
                           const Use& use) const {
  std::size_t done = 0;
  for (Trie::Found found = trie.find(text, 0); found.id >= 0; found = trie.find(text, found.end)) {
    const AddedToken& token = entries_.at(found.id).token;
    if (only_ordinary && token.special) continue;
    if (token.single_word && !is_whole_word(text, found)) continue;
    const Place place = place_of(text, found, token, done);
    if (done < place.begin) use({.text = text.substr(done, place.begin - done)});
    use({.text = text.substr(place.begin, place.end - place.begin), .id = found.id});
    done = place.end;
  }
  if (done < text.size()) use({.text = text.substr(done)});
}

const std::string* AddedTokens::token_of(std::int32_t id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : &found->second.normalized;
}

const std::string* AddedTokens::content_of(std::int32_t id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : &found->second.token.content;
}

std::int32_t AddedTokens::id_of(std::string_view content) const {
  const auto found = ids_.find(content);
  return found == ids_.end() ? -1 : found->second;
}

bool AddedTokens::is_special(std::string_view content) const {
  const std::int32_t id = id_of(content);
  return id >= 0 && entries_.at(id).token.special;
}

}  // namespace tessera::text
