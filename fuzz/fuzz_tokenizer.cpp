// Arbitrary bytes as text, by a byte-level tokenizer and by one with byte fallback, and as patterns. Ids are
// those of the vocabulary; what was UTF-8 comes back; another encoding of the result is the same.
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.h"
#include "src/text/regex.h"
#include "src/text/utf8_text.h"
#include "tessera/error.h"
#include "tessera/tokenizer.h"

using namespace tessera;

namespace {

constexpr const char* kBytePattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Trained on a little text, so that words merge; with a pattern like that of Llama 3.
Tokenizer byte_level() {
  const std::vector<std::string> texts = {
      "the cat and the hat; the cat's 123 hats\n\n  and   the end, the \u00e9t\u00e9 \u65e5\u672c\u8a9e"};
  std::string file = train_bpe(texts, {.vocabulary = 300, .special_tokens = {"<s>"}, .least_count = 1});
  const std::string whole = "\"pre_tokenizer\": {";
  std::string escaped;
  for (const char c : std::string_view(kBytePattern)) escaped += c == '\\' ? "\\\\" : std::string(1, c);
  const std::size_t begin = file.find(whole);
  fuzz::require(begin != file.npos, "no pre-tokenizer");
  const std::size_t end = file.find('}', begin) + 1;
  file.replace(
      begin, end - begin,
      R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "Isolated", "pattern": {"Regex": ")" +
          escaped + R"("}}, {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})");
  return Tokenizer::parse(file);
}

// All bytes as <0x..>, a few characters, a merge, and an added token that takes white space.
Tokenizer byte_fallback() {
  std::string vocabulary = R"("<unk>": 0, "a": 1, "b": 2, "ab": 3, "\u2581": 4, "\u2581a": 5)";
  constexpr const char* kDigits = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte)
    vocabulary +=
        std::string(", \"<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">\": " + std::to_string(6 + byte);
  return Tokenizer::parse(
      R"({"added_tokens": [{"content": "<m>", "lstrip": true, "rstrip": true, "normalized": false}],
          "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
          "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
          "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "fuse_unk": true,
            "merges": ["a b", "\u2581 a"], "vocab": {)" +
      vocabulary + "}}}");
}

void check_ids(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  for (const std::int32_t id : ids)
    fuzz::require(id >= 0 && id < tokenizer.vocabulary(), "an id is outside the vocabulary");
}

void check_inverse(const Tokenizer& tokenizer, std::string_view text) {
  std::string repaired;
  text::append_utf8(text, repaired);
  fuzz::require(text::is_utf8(repaired), "the repaired text is not UTF-8");
  fuzz::require(!text::is_utf8(text) || repaired == text, "UTF-8 was changed");
  for (const bool finds : {true, false}) {
    const std::vector<std::int32_t> ids = tokenizer.encode(text, {.find_special_tokens = finds});
    check_ids(tokenizer, ids);
    fuzz::require(tokenizer.decode(ids) == repaired, "decoding does not invert encoding");
  }
}

// Any pattern is refused or matches parts of the text in order.
void check_pattern(std::string_view pattern, std::string_view text) try {
  const text::Regex regex(pattern);
  text::RegexScratch scratch;
  text::RegexMatches matches(regex, text, scratch);
  std::size_t end = 0;
  for (text::Span match; matches.next(match); end = match.end)
    fuzz::require(match.begin >= end && match.begin <= match.end && match.end <= text.size(),
                  "a match out of order");
} catch (const UsageError&) {
} catch (const EnvironmentError&) {  // too many steps
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  static const Tokenizer kByteLevel = byte_level(), kByteFallback = byte_fallback();
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  check_inverse(kByteLevel, text);
  const std::vector<std::int32_t> ids = kByteFallback.encode(text);
  check_ids(kByteFallback, ids);
  fuzz::require(text::is_utf8(kByteFallback.decode(ids)), "decoding gives no UTF-8");
  std::vector<std::int32_t> any;
  for (std::size_t i = 0; i < bytes; ++i) any.push_back(data[i] * 2 - 100);
  fuzz::require(text::is_utf8(kByteLevel.decode(any)), "decoding of any ids gives no UTF-8");
  if (bytes < 60) check_pattern(text, "aab 12\u00e9\u65e5\n b'S");
  try {
    Tokenizer::parse(text);
  } catch (const UsageError&) {
  }
  return 0;
}
