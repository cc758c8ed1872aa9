#include "tessera/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/text/added_tokens.h"
#include "src/text/bpe_model.h"
#include "src/text/decoder.h"
#include "src/text/json_fields.h"
#include "src/text/normalizer.h"
#include "src/text/pre_tokenizer.h"
#include "src/text/read_model.h"
#include "src/text/template.h"
#include "src/text/utf8_text.h"
#include "tessera/error.h"

namespace tessera {

namespace {

// What one call of encode() or decode() needs, and the next reuses.
struct Workspace {
  text::BpeScratch bpe;
  text::RegexScratch regex;
};

// Workspaces that no call uses.
class Workspaces {
 public:
  std::unique_ptr<Workspace> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Workspace>();
    std::unique_ptr<Workspace> workspace = std::move(free_.back());
    free_.pop_back();
    return workspace;
  }
  void give_back(std::unique_ptr<Workspace> workspace) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(workspace));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> free_;
};

text::AddedTokens::Normalize normalize_by(const text::Normalizer& normalizer, text::RegexScratch& scratch) {
  if (normalizer.is_empty()) return {};
  return [&](std::string& content) { normalizer.apply(content, scratch); };
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(const nlohmann::json& file)
      : normalizer(text::Normalizer::read(text::find_field(file, "normalizer"))),
        pre_tokenizer(text::PreTokenizer::read(text::find_field(file, "pre_tokenizer"))),
        model(text::read_model(file, pre_tokenizer.is_byte_level())),
        added(text::read_added_tokens(file), model, normalize_by(normalizer, workspaces.take()->regex)),
        around(text::Template::read(text::find_field(file, "post_processor"))),
        decoder(text::Decoder::read(text::find_field(file, "decoder"))) {}

  mutable Workspaces workspaces;
  text::Normalizer normalizer;
  text::PreTokenizer pre_tokenizer;
  text::BpeModel model;
  text::AddedTokens added;
  text::Template around;
  text::Decoder decoder;
};

namespace {

// One call of encode().
class Encoding {
 public:
  Encoding(const text::Normalizer& normalizer, const text::PreTokenizer& pre_tokenizer,
           const text::BpeModel& model, const text::AddedTokens& added, Workspace& workspace,
           std::vector<std::int32_t>& ids)
      : normalizer_(normalizer),
        pre_tokenizer_(pre_tokenizer),
        added_(added),
        workspace_(workspace),
        ids_(ids),
        encode_word_([&](std::string_view word) { model.encode_word(word, workspace.bpe, ids); }) {}

  void run(std::string_view text, bool only_ordinary) {
    const char* begin = text.data();
    added_.split(text, only_ordinary, [&](const text::Piece& piece) {
      if (piece.id >= 0) return ids_.push_back(piece.id);
      encode_piece(piece.text, piece.text.data() == begin, only_ordinary);
    });
  }

 private:
  void encode_piece(std::string_view text, bool is_first, bool only_ordinary) {
    if (normalizer_.is_empty()) return encode_normalized(text, is_first, only_ordinary);
    std::string normalized(text);
    normalizer_.apply(normalized, workspace_.regex);
    encode_normalized(normalized, is_first, only_ordinary);
  }
  void encode_normalized(std::string_view text, bool is_first, bool only_ordinary) {
    added_.split_normalized(text, only_ordinary, [&](const text::Piece& piece) {
      if (piece.id >= 0) return ids_.push_back(piece.id);
      const bool begins = is_first && piece.text.data() == text.data();
      pre_tokenizer_.split(piece.text, begins, workspace_.regex, encode_word_);
    });
  }

  const text::Normalizer& normalizer_;
  const text::PreTokenizer& pre_tokenizer_;
  const text::AddedTokens& added_;
  Workspace& workspace_;
  std::vector<std::int32_t>& ids_;
  text::PreTokenizer::Use encode_word_;
};

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) throw EnvironmentError(fmt::format("the tokenizer '{}' cannot be read", path.string()));
  return text;
}

}  // namespace

Tokenizer Tokenizer::open(const std::filesystem::path& path) {
  std::error_code none;
  const std::filesystem::path file =
      std::filesystem::is_directory(path, none) ? path / "tokenizer.json" : path;
  return parse(read_file(file), file.string());
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& name) {
  const nlohmann::json file = nlohmann::json::parse(json, nullptr, false);
  if (file.is_discarded()) throw UsageError(fmt::format("{} is not JSON", name));
  try {
    return Tokenizer(std::make_shared<const Impl>(file));
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", name, error.what()));
  }
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3);
  encode(text, options, ids);
  return ids;
}

void Tokenizer::encode(std::string_view text, const EncodeOptions& options,
                       std::vector<std::int32_t>& ids) const {
  std::string repaired;
  if (!text::is_utf8(text)) {
    text::append_utf8(text, repaired);
    text = repaired;
  }
  const Impl& impl = *impl_;
  const auto add = [&](const std::vector<std::int32_t>& around) {
    if (options.add_special_tokens) ids.insert(ids.end(), around.begin(), around.end());
  };
  std::unique_ptr<Workspace> workspace = impl.workspaces.take();
  add(impl.around.before);
  Encoding(impl.normalizer, impl.pre_tokenizer, impl.model, impl.added, *workspace, ids)
      .run(text, !options.find_special_tokens);
  add(impl.around.behind);
  impl.workspaces.give_back(std::move(workspace));
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const std::int32_t id : ids) {
    const std::string* token = impl_->added.token_of(id);
    if (token == nullptr) token = impl_->model.token_of(id);
    if (token == nullptr || (skip_special_tokens && impl_->added.is_special(*token))) continue;
    tokens.push_back(*token);
  }
  std::unique_ptr<Workspace> workspace = impl_->workspaces.take();
  std::string text = impl_->decoder.decode(std::move(tokens), workspace->regex);
  impl_->workspaces.give_back(std::move(workspace));
  return text;
}

std::int64_t Tokenizer::vocabulary() const {
  return std::max<std::int64_t>(impl_->model.largest_id(), impl_->added.largest_id()) + 1;
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const {
  const std::int32_t added = impl_->added.id_of(token);
  return added >= 0 ? std::optional(added) : impl_->model.id_of(token);
}

std::optional<std::string> Tokenizer::token_of(std::int32_t id) const {
  const std::string* token = impl_->added.content_of(id);
  if (token == nullptr) token = impl_->model.token_of(id);
  return token == nullptr ? std::nullopt : std::optional(*token);
}

}  // namespace tessera
