// The files that `tessera evaluate` measures: their documents as tokens, and the windows that these are cut
// into.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/cli/evaluate/score.h"
#include "src/cli/text_tokens.h"

namespace tessera::cli {

// What of a file is needed behind its tokens.
struct EvaluatedFile {
  std::string name;
  std::int64_t documents = 0;
  std::int64_t tokens = 0;  // those in front of each document included
  // Bytes of its text. They are unknown for a token file without a tokenizer, and for one with a mask.
  std::optional<std::int64_t> bytes = 0;
  std::vector<std::int64_t> begins;  // of its documents in its store, and the end
};

struct EvaluatedFiles {
  std::vector<EvaluatedFile> files;
  std::vector<TokenStore> stores;  // one a file
};

// Whether a file is taken for a token file, by its name.
bool is_named_token_file(const std::string& name);

struct EvaluatedText {
  std::string field = "text";     // of JSON lines
  bool prefix = true;             // the tokenizer's tokens in front of each document
  std::int64_t vocabulary = 256;  // the model's
};

// Reads files: text, a document each; JSON lines, a document a line, both also compressed; and token files, a
// document each. `text` is none if there are only token files and no tokenizer is known. Throws as Documents
// and TokenSource do; UsageError for a file that is given twice.
EvaluatedFiles read_files(const std::vector<std::string>& names, const std::optional<TextTokens>& text,
                          const EvaluatedText& how);

// The windows of a file's documents: each has at most `length` inputs, and begins `stride` tokens behind the
// one before. All targets of a document's first window count, and of each other window those that no window
// before has. So every token of a document but its first counts once.
std::vector<Piece> windows_of(const EvaluatedFile& file, std::int32_t store, std::int64_t length,
                              std::int64_t stride);

}  // namespace tessera::cli
