// Tokenizers in a build without PCRE2 or ICU: each function throws.
#include "tessera/error.h"
#include "tessera/tokenizer.h"

namespace tessera {

namespace {

[[noreturn]] void refuse() {
  throw UnsupportedError("this build has no tokenizers: build with PCRE2 and ICU (TESSERA_WITH_TEXT=ON)");
}

}  // namespace

Tokenizer Tokenizer::open(const std::filesystem::path&) { refuse(); }
Tokenizer Tokenizer::parse(std::string_view, const std::string&) { refuse(); }
std::vector<std::int32_t> Tokenizer::encode(std::string_view, const EncodeOptions&) const { refuse(); }
void Tokenizer::encode(std::string_view, const EncodeOptions&, std::vector<std::int32_t>&) const { refuse(); }
std::string Tokenizer::decode(std::span<const std::int32_t>, bool) const { refuse(); }
std::int64_t Tokenizer::vocabulary() const { refuse(); }
std::optional<std::int32_t> Tokenizer::id_of(std::string_view) const { refuse(); }
std::optional<std::string> Tokenizer::token_of(std::int32_t) const { refuse(); }
std::string train_bpe(std::span<const std::string>, const BpeTraining&) { refuse(); }

}  // namespace tessera
