#include "src/text/decoder.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "src/text/byte_characters.h"
#include "src/text/json_fields.h"
#include "src/text/normalizer.h"
#include "src/text/utf8_text.h"
#include "tessera/error.h"

namespace tessera::text {

namespace {

using Tokens = std::vector<std::string>;

constexpr std::string_view kSupported =
    "ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip and Sequence";

std::string join(const Tokens& tokens, std::string_view separator = "") {
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) text += separator;
    text += tokens[i];
  }
  return text;
}

// A token with a character that stands for no byte is taken as it is.
void decode_byte_level(Tokens& tokens) {
  std::string bytes, text;
  for (const std::string& token : tokens) bytes += bytes_of_characters(token).value_or(token);
  append_utf8(bytes, text);
  tokens = {std::move(text)};
}

// The byte of a token "<0x41>".
std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with(">")) return std::nullopt;
  int value = 0;
  for (std::size_t i = 3; i < 5; ++i) {
    const std::size_t digit = std::string_view("0123456789abcdefABCDEF").find(token[i]);
    const bool is_sign = i == 3 && token[i] == '+';  // Rust's numbers may begin with one
    if (digit == std::string_view::npos && !is_sign) return std::nullopt;
    value = 16 * value + static_cast<int>(is_sign ? 0 : digit < 16 ? digit : digit - 6);
  }
  return static_cast<char>(value);
}

// Bytes in a row become their text, or, if they are not UTF-8, one U+FFFD each.
void decode_byte_fallback(Tokens& tokens) {
  Tokens result;
  std::string bytes;
  const auto end_bytes = [&] {
    if (is_utf8(bytes)) {
      if (!bytes.empty()) result.push_back(bytes);
    } else {
      result.insert(result.end(), bytes.size(), "\ufffd");
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const std::optional<char> byte = fallback_byte(token)) {
      bytes += *byte;
    } else {
      end_bytes();
      result.push_back(std::move(token));
    }
  }
  end_bytes();
  tokens = std::move(result);
}

// Removes up to `start` characters `content` at the start of each token, and up to `stop` at its end.
void strip(std::string& token, std::string_view content, std::int64_t start, std::int64_t stop) {
  std::string_view rest = token;
  for (; start > 0 && rest.starts_with(content); --start) rest.remove_prefix(content.size());
  for (; stop > 0 && rest.ends_with(content); --stop) rest.remove_suffix(content.size());
  token = std::string(rest);
}

// Metaspace: the first token loses all its ▁ unless a tokenizer never prepends one.
void decode_metaspace(Tokens& tokens, std::string_view space, bool strips_first, RegexScratch& scratch) {
  const Regex regex = Regex::literal(space);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = replace_all(regex, tokens[i], i == 0 && strips_first ? "" : " ", scratch);
}

}  // namespace

Decoder Decoder::read(const nlohmann::json* object) {
  Decoder decoder;
  if (object == nullptr) decoder.separator_ = std::string(1, ' ');
  for_parts(object, "decoders",
            [&](const nlohmann::json& part, const std::string& type) { decoder.add(part, type); });
  return decoder;
}

void Decoder::add(const nlohmann::json& part, const std::string& type) {
  if (type == "ByteLevel") {
    steps_.emplace_back([](Tokens& tokens, RegexScratch&) { decode_byte_level(tokens); });
  } else if (type == "ByteFallback") {
    steps_.emplace_back([](Tokens& tokens, RegexScratch&) { decode_byte_fallback(tokens); });
  } else if (type == "Fuse") {
    steps_.emplace_back([](Tokens& tokens, RegexScratch&) { tokens = {join(tokens)}; });
  } else if (type == "Replace") {
    steps_.emplace_back([regex = read_pattern(part), content = string_field(part, "content")](
                            Tokens& tokens, RegexScratch& scratch) {
      for (std::string& token : tokens) token = replace_all(regex, token, content, scratch);
    });
  } else if (type == "Strip") {
    const auto count = [&](const char* key) {
      const nlohmann::json* field = find_field(part, key);
      return field == nullptr ? 0 : count_of(*field, key);
    };
    const std::string content = string_field(part, "content");
    if (content.empty()) throw UsageError("the 'content' of the decoder 'Strip' is empty");
    steps_.emplace_back(
        [content, start = count("start"), stop = count("stop")](Tokens& tokens, RegexScratch&) {
          for (std::string& token : tokens) strip(token, content, start, stop);
        });
  } else if (type == "Metaspace") {
    const bool strips = string_field(part, "prepend_scheme", "always") != "never";
    const std::string space = string_field(part, "replacement");
    if (space.empty()) throw UsageError("the 'replacement' of the decoder 'Metaspace' is empty");
    steps_.emplace_back([space, strips](Tokens& tokens, RegexScratch& scratch) {
      decode_metaspace(tokens, space, strips, scratch);
    });
  } else {
    refuse_type("decoder", type, kSupported);
  }
}

std::string Decoder::decode(Tokens tokens, RegexScratch& scratch) const {
  for (const Step& step : steps_) step(tokens, scratch);
  return join(tokens, separator_);
}

}  // namespace tessera::text
