#include "src/text/normalizer.h"

#include <fmt/format.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "src/text/json_fields.h"
#include "tessera/error.h"

namespace tessera::text {

namespace {

constexpr std::string_view kSupported = "NFC, NFD, NFKC, NFKD, Prepend, Replace and Sequence";

void require(UErrorCode status) {
  if (U_FAILURE(status)) throw EnvironmentError(fmt::format("ICU refuses: {}", u_errorName(status)));
}

// The tokenizers library normalizes by the tables of Unicode 9.0. Characters that are newer stay as they are,
// and so they must here.
const icu::UnicodeSet& characters_of_unicode_9() {
  static const icu::UnicodeSet set = [] {
    UErrorCode status = U_ZERO_ERROR;
    icu::UnicodeSet assigned(u"[:age=9.0:]", status);
    require(status);
    assigned.freeze();
    return assigned;
  }();
  return set;
}

const icu::Normalizer2* find_form(std::string_view type) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* form = type == "NFC"    ? icu::Normalizer2::getNFCInstance(status)
                                 : type == "NFD"  ? icu::Normalizer2::getNFDInstance(status)
                                 : type == "NFKC" ? icu::Normalizer2::getNFKCInstance(status)
                                 : type == "NFKD" ? icu::Normalizer2::getNFKDInstance(status)
                                                  : nullptr;
  require(status);
  return form;
}

void normalize(const icu::FilteredNormalizer2& form, std::string& text) {
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::ranges::all_of(text, is_ascii)) return;
  UErrorCode status = U_ZERO_ERROR;
  if (form.isNormalizedUTF8(text, status)) return require(status);
  std::string result;
  icu::StringByteSink<std::string> sink(&result, static_cast<std::int32_t>(text.size()));
  form.normalizeUTF8(0, text, sink, nullptr, status);
  require(status);
  text = std::move(result);
}

}  // namespace

Normalizer Normalizer::read(const nlohmann::json* object) {
  Normalizer normalizer;
  for_parts(object, "normalizers",
            [&](const nlohmann::json& part, const std::string& type) { normalizer.add(part, type); });
  return normalizer;
}

void Normalizer::add(const nlohmann::json& part, const std::string& type) {
  if (const icu::Normalizer2* form = find_form(type)) {
    const auto filtered = std::make_shared<icu::FilteredNormalizer2>(*form, characters_of_unicode_9());
    steps_.emplace_back([filtered](std::string& text, RegexScratch&) { normalize(*filtered, text); });
  } else if (type == "Prepend") {
    steps_.emplace_back([start = string_field(part, "prepend")](std::string& text, RegexScratch&) {
      if (!text.empty()) text.insert(0, start);
    });
  } else if (type == "Replace") {
    steps_.emplace_back(
        [regex = read_pattern(part), content = string_field(part, "content")](
            std::string& text, RegexScratch& scratch) { text = replace_all(regex, text, content, scratch); });
  } else {
    refuse_type("normalizer", type, kSupported);
  }
}

Regex read_pattern(const nlohmann::json& object) {
  const nlohmann::json* pattern = find_field(object, "pattern");
  if (pattern == nullptr) throw UsageError("'pattern' is missing");
  const bool is_literal = find_field(*pattern, "String") != nullptr;
  const std::string text = string_field(*pattern, is_literal ? "String" : "Regex");
  if (text.empty()) throw UsageError("a 'pattern' is empty");
  return is_literal ? Regex::literal(text) : Regex(text);
}

std::string replace_all(const Regex& regex, std::string_view text, std::string_view content,
                        RegexScratch& scratch) {
  std::string result;
  std::size_t end = 0;
  RegexMatches matches(regex, text, scratch);
  for (Span match; matches.next(match); end = match.end) {
    result += text.substr(end, match.begin - end);
    result += content;
  }
  result += text.substr(end);
  return result;
}

}  // namespace tessera::text
