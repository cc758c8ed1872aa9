// Text as token ids and back: reads the tokenizer.json files of Hugging Face's tokenizers library, and trains
// byte-level tokenizers. Knows nothing of token files (data.h) or models.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct EncodeOptions {
  // Adds the tokens that the file's "post_processor" puts around a text, such as <s>.
  bool add_special_tokens = false;
  // Finds special tokens, such as <|endoftext|>, where the text spells them. If false, they are ordinary
  // text: set it for text that others wrote.
  bool find_special_tokens = true;
};

// A byte pair encoding (BPE). It gives the ids that the tokenizers library gives for the same file, byte for
// byte.
//
//   Tokenizer tokenizer = Tokenizer::open("model/tokenizer.json");
//   std::vector<std::int32_t> ids = tokenizer.encode("Hello, world");
//   std::string text = tokenizer.decode(ids);
//
// Copies share the vocabulary. Any number of threads may use one tokenizer at a time.
class Tokenizer {
 public:
  // Reads `path`, a tokenizer.json or a folder that has one. Throws EnvironmentError if the file cannot be
  // read, and throws as parse() does.
  static Tokenizer open(const std::filesystem::path& path);
  // Reads the text of a tokenizer.json. Messages show `name`. Throws UsageError if the text is no tokenizer,
  // or if it has a part that is not supported, naming the part. "truncation" and "padding" are ignored.
  static Tokenizer parse(std::string_view json, const std::string& name = "tokenizer.json");

  // The ids of a text. Bytes that are not UTF-8 are read as U+FFFD, as by Python's decode("utf-8",
  // "replace"). Throws UsageError for a character that has no token, if the tokenizer names an unknown token
  // that it lacks.
  std::vector<std::int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // The same, appended to `ids`.
  void encode(std::string_view text, const EncodeOptions& options, std::vector<std::int32_t>& ids) const;

  // The text of ids, always UTF-8: bytes that do not make a character become U+FFFD. An id without a token is
  // left out, and so are special tokens with `skip_special_tokens`. Where a text was UTF-8 and the file has
  // no "normalizer", decode(encode(text)) is the text.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens = false) const;

  // The number of ids, from 0 to the largest: what a model's vocabulary must be at least.
  std::int64_t vocabulary() const;
  // The id of a token as the file spells it. Empty if there is none.
  std::optional<std::int32_t> id_of(std::string_view token) const;
  // How the file spells the token with this id. Empty if there is none.
  std::optional<std::string> token_of(std::int32_t id) const;

 private:
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

struct BpeTraining {
  // Ids in all: special tokens, 256 bytes, and a merge for each other.
  std::int64_t vocabulary = 0;
  // They get the first ids, and are found as they are spelled.
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
  // A merge needs at least as many occurrences.
  std::int64_t least_count = 2;
};

// Trains a byte-level BPE that splits text as GPT-2 does. Returns the text of a tokenizer.json, which
// Tokenizer::parse and the tokenizers library read alike. Equal texts in any order and equal options give
// equal files: of pairs that occur equally often, that of the lower ids is merged first. If the texts have
// too few pairs, the vocabulary is smaller. Bytes that are not UTF-8 are read as U+FFFD. Throws UsageError
// for a vocabulary below 256 and the special tokens, and for special tokens that are empty, not UTF-8, or
// equal.
std::string train_bpe(std::span<const std::string> texts, const BpeTraining& options);

}  // namespace tessera
