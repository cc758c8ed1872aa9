#include "src/cli/evaluate/evaluated_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "src/cli/output.h"
#include "src/cli/prepare/documents.h"

namespace tessera::cli {

namespace {

constexpr const char* kCommand = "evaluate";

void check_names(const std::vector<std::string>& names) {
  for (std::size_t k = 0; k < names.size(); ++k) {
    std::error_code none;
    if (!std::filesystem::is_regular_file(names[k], none))
      throw EnvironmentError(fmt::format("{}: '{}' is not there, or no file", kCommand, escaped(names[k])));
    for (std::size_t before = 0; before < k; ++before)
      if (std::filesystem::equivalent(names[k], names[before], none))
        throw UsageError(
            fmt::format("{}: '{}' is given twice; give each file once", kCommand, escaped(names[k])));
  }
}

// The bytes of tokens' text. It is decoded in parts that end where characters end.
std::int64_t bytes_of_text(const TokenStore& store, const TextTokens& text) {
  constexpr std::int64_t kPart = std::int64_t{1} << 16;
  constexpr int kMostParted = 8;  // tokens over which one character may go
  std::int64_t bytes = 0;
  std::vector<std::int32_t> tokens;
  for (std::int64_t begin = 0; begin < store.numel();) {
    tokens.resize(static_cast<std::size_t>(std::min(kPart, store.numel() - begin)));
    store.read(begin, tokens);
    std::string part = text.decode(tokens);
    const bool last = begin + static_cast<std::int64_t>(tokens.size()) == store.numel();
    for (int more = 0; !last && more < kMostParted && part.ends_with(kReplacement) && tokens.size() > 1;
         ++more) {
      tokens.pop_back();
      part = text.decode(tokens);
    }
    bytes += static_cast<std::int64_t>(part.size());
    begin += static_cast<std::int64_t>(tokens.size());
  }
  return bytes;
}

void add_token_file(EvaluatedFiles& all, EvaluatedFile file, const std::optional<TextTokens>& text,
                    std::int64_t vocabulary) {
  const TokenSource source = TokenSource::open(file.name, vocabulary);
  source.check_tokens();
  file.documents = 1;
  file.tokens = source.numel();
  file.begins = {0, file.tokens};
  all.stores.emplace_back(source);
  // With a mask the bytes are not told: the tokens that count may begin and end within a character.
  const bool known = text && !source.masked();
  file.bytes = known ? std::optional(bytes_of_text(all.stores.back(), *text)) : std::nullopt;
  all.files.push_back(std::move(file));
}

void add_text(EvaluatedFiles& all, EvaluatedFile file, const TextTokens& text, const EvaluatedText& how) {
  const std::vector<std::int32_t> prefix = how.prefix ? text.prefix() : std::vector<std::int32_t>();
  std::vector<std::int32_t> tokens;
  file.begins = {0};
  Documents documents(file.name, {.text = how.field}, kCommand);
  while (const std::optional<Document> document = documents.next()) {
    tokens.insert(tokens.end(), prefix.begin(), prefix.end());
    const std::vector<std::int32_t> own = text.encode(document->text);
    tokens.insert(tokens.end(), own.begin(), own.end());
    file.begins.push_back(static_cast<std::int64_t>(tokens.size()));
    *file.bytes += document->bytes();
    ++file.documents;
  }
  if (file.documents == 0)
    throw UsageError(fmt::format("{}: '{}' has no text", kCommand, escaped(file.name)));
  file.tokens = file.begins.back();
  all.stores.emplace_back(std::move(tokens));
  all.files.push_back(std::move(file));
}

}  // namespace

bool is_named_token_file(const std::string& name) { return name.ends_with(".bin"); }

EvaluatedFiles read_files(const std::vector<std::string>& names, const std::optional<TextTokens>& text,
                          const EvaluatedText& how) {
  check_names(names);
  EvaluatedFiles all;
  for (const std::string& name : names) {
    EvaluatedFile file{.name = name, .begins = {}};
    if (is_named_token_file(name))
      add_token_file(all, std::move(file), text, how.vocabulary);
    else
      add_text(all, std::move(file), text.value(), how);
  }
  return all;
}

std::vector<Piece> windows_of(const EvaluatedFile& file, std::int32_t store, std::int64_t length,
                              std::int64_t stride) {
  std::vector<Piece> windows;
  for (std::size_t document = 0; document + 1 < file.begins.size(); ++document) {
    const std::int64_t first = file.begins[document];
    const std::int64_t targets = file.begins[document + 1] - first - 1;
    for (std::int64_t begin = 0, counted = 0; counted < targets; begin += stride) {
      const std::int64_t end = std::min(begin + length, targets);
      windows.push_back({.store = store,
                         .length = static_cast<std::int32_t>(end - begin),
                         .uncounted = static_cast<std::int32_t>(counted - begin),
                         .begin = first + begin});
      counted = end;
    }
  }
  return windows;
}

}  // namespace tessera::cli
