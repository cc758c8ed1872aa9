#include "src/text/read_model.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "src/text/json_fields.h"
#include "tessera/error.h"

namespace tessera::text {

namespace {

constexpr std::int64_t kMostIds = std::int64_t{1}
                                  << 24;  // so that a damaged file takes no memory without end

Vocabulary read_vocabulary(const nlohmann::json& model) {
  const nlohmann::json* field = find_field(model, "vocab");
  if (field == nullptr || !field->is_object()) throw UsageError("the model's 'vocab' is not an object");
  Vocabulary vocabulary;
  vocabulary.reserve(field->size());
  for (const auto& [token, value] : field->items()) {
    const std::int64_t id = count_of(value, token);
    if (id >= kMostIds)
      throw UsageError(fmt::format("the id {} of '{}' is not below {}", id, token, kMostIds));
    vocabulary.emplace(token, static_cast<std::int32_t>(id));
  }
  return vocabulary;
}

// "a b" or ["a", "b"].
std::pair<std::string, std::string> read_merge(const nlohmann::json& merge) {
  if (merge.is_array() && merge.size() == 2)
    return {string_of(merge[0], "merges"), string_of(merge[1], "merges")};
  const std::string text = string_of(merge, "merges");
  const std::size_t space = text.find(' ');
  if (space == text.npos || text.find(' ', space + 1) != text.npos)
    throw UsageError(fmt::format("the merge '{}' is not two tokens with a space between them", text));
  return {text.substr(0, space), text.substr(space + 1)};
}

std::vector<std::pair<std::string, std::string>> read_merges(const nlohmann::json& model) {
  std::vector<std::pair<std::string, std::string>> merges;
  for (const nlohmann::json& merge : list_field(model, "merges")) {
    if (merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version")) continue;
    merges.push_back(read_merge(merge));
  }
  return merges;
}

void check_type(const nlohmann::json& model) {
  const std::string type = string_field(model, "type", "BPE");
  if (type == "BPE") return;
  throw UsageError(fmt::format(
      "the model '{}' is not supported; only BPE is. Encode the text with the tokenizers library and "
      "write its ids to a token file, or take a model with a BPE tokenizer",
      type));
}

// What changes ids and is not there.
void refuse_options(const nlohmann::json& model) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!string_field(model, key, "").empty())
      throw UsageError(fmt::format("the model's '{}' is '{}'; only models without one are supported", key,
                                   string_field(model, key)));
  const nlohmann::json* dropout = find_field(model, "dropout");
  if (dropout != nullptr && *dropout != 0)
    throw UsageError("the model has a 'dropout', with which ids are random; set it to null");
}

}  // namespace

BpeConfig read_model(const nlohmann::json& file, bool byte_level) {
  const nlohmann::json* model = find_field(file, "model");
  if (model == nullptr) throw UsageError("there is no 'model'");
  check_type(*model);
  refuse_options(*model);
  return {.vocabulary = read_vocabulary(*model),
          .merges = read_merges(*model),
          .unknown_token = string_field(*model, "unk_token", ""),
          .fuse_unknown = bool_field(*model, "fuse_unk", false),
          .byte_fallback = bool_field(*model, "byte_fallback", false),
          .ignore_merges = bool_field(*model, "ignore_merges", false),
          .byte_level = byte_level};
}

std::vector<AddedToken> read_added_tokens(const nlohmann::json& file) {
  std::vector<AddedToken> tokens;
  if (find_field(file, "added_tokens") == nullptr) return tokens;
  for (const nlohmann::json& token : list_field(file, "added_tokens")) {
    const bool special = bool_field(token, "special", false);
    tokens.push_back({.content = string_field(token, "content"),
                      .single_word = bool_field(token, "single_word", false),
                      .lstrip = bool_field(token, "lstrip", false),
                      .rstrip = bool_field(token, "rstrip", false),
                      .normalized = bool_field(token, "normalized", !special),
                      .special = special});
  }
  return tokens;
}

}  // namespace tessera::text
