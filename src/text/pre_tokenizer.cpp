#include "src/text/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/text/json_fields.h"
#include "src/text/normalizer.h"
#include "src/text/split_spans.h"
#include "src/text/utf8_text.h"
#include "tessera/error.h"

namespace tessera::text {

namespace {

constexpr std::string_view kSupported = "ByteLevel, Split, Digits, Metaspace and Sequence";
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

SplitBehavior behavior_of(const std::string& name) {
  constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kNames = {{
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous},
  }};
  const auto found =
      std::ranges::find(kNames, std::string_view(name), &std::pair<std::string_view, SplitBehavior>::first);
  if (found == kNames.end()) throw UsageError(fmt::format("the behavior '{}' of a Split is not known", name));
  return found->second;
}

}  // namespace

PreTokenizer PreTokenizer::read(const nlohmann::json* object) {
  PreTokenizer result;
  for_parts(object, "pretokenizers",
            [&](const nlohmann::json& part, const std::string& type) { result.add(part, type); });
  return result;
}

PreTokenizer PreTokenizer::gpt2() {
  PreTokenizer result;
  result.byte_level_ = true;
  result.steps_.emplace_back(Split{.regex = Regex(kGpt2Pattern)});
  return result;
}

void PreTokenizer::add(const nlohmann::json& part, const std::string& type) {
  if (byte_level_)
    throw UsageError(
        fmt::format("the pre-tokenizer '{}' follows 'ByteLevel', which is supported at the end only", type));
  if (type == "ByteLevel") return add_byte_level(part);
  if (type == "Metaspace") {
    steps_.emplace_back(read_metaspace(part));
  } else if (type == "Split") {
    steps_.emplace_back(Split{.regex = read_pattern(part),
                              .behavior = behavior_of(string_field(part, "behavior")),
                              .invert = bool_field(part, "invert", false)});
  } else if (type == "Digits") {
    const bool each = bool_field(part, "individual_digits", false);
    steps_.emplace_back(Split{.regex = Regex("\\p{N}"),
                              .behavior = each ? SplitBehavior::isolated : SplitBehavior::contiguous});
  } else {
    refuse_type("pre-tokenizer", type, kSupported);
  }
}

void PreTokenizer::add_byte_level(const nlohmann::json& part) {
  byte_level_ = true;
  if (bool_field(part, "add_prefix_space", true)) steps_.emplace_back(LeadingSpace{});
  if (bool_field(part, "use_regex", true)) steps_.emplace_back(Split{.regex = Regex(kGpt2Pattern)});
}

PreTokenizer::Metaspace PreTokenizer::read_metaspace(const nlohmann::json& part) {
  Metaspace metaspace{.space = string_field(part, "replacement"), .split = bool_field(part, "split", true)};
  if (metaspace.space.empty() || character_bytes(metaspace.space[0]) != metaspace.space.size())
    throw UsageError(fmt::format("the replacement '{}' of Metaspace is not one character", metaspace.space));
  const std::string scheme = string_field(part, "prepend_scheme", "always");
  if (scheme == "never")
    metaspace.prepend = Prepend::never;
  else if (scheme == "first")
    metaspace.prepend = Prepend::first;
  else if (scheme != "always")
    throw UsageError(fmt::format("the prepend_scheme '{}' is not always, first or never", scheme));
  if (!bool_field(part, "add_prefix_space", true) && metaspace.prepend != Prepend::never)
    throw UsageError("add_prefix_space is false, and prepend_scheme is not 'never'");
  return metaspace;
}

void PreTokenizer::split(std::string_view text, bool is_first, RegexScratch& scratch, const Use& use) const {
  run(0, text, is_first, {.scratch = scratch, .use = use});
}

void PreTokenizer::run(std::size_t step, std::string_view text, bool is_first, const Call& call) const {
  if (text.empty()) return;
  if (step == steps_.size()) return call.use(text);
  std::visit([&](const auto& kind) { apply(kind, step + 1, text, is_first, call); }, steps_[step]);
}

void PreTokenizer::apply(const Split& split, std::size_t next, std::string_view text, bool is_first,
                         const Call& call) const {
  RegexMatches matches(split.regex, text, call.scratch);
  for_splits(matches, text.size(), {.behavior = split.behavior, .invert = split.invert}, [&](Span span) {
    run(next, text.substr(span.begin, span.end - span.begin), is_first && span.begin == 0, call);
  });
}

void PreTokenizer::apply(const Metaspace& metaspace, std::size_t next, std::string_view text, bool is_first,
                         const Call& call) const {
  std::string replaced;
  replaced.reserve(text.size() + text.size() / 2);
  for (const char c : text) {
    if (c == ' ')
      replaced += metaspace.space;
    else
      replaced += c;
  }
  const bool prepends =
      metaspace.prepend == Prepend::always || (metaspace.prepend == Prepend::first && is_first);
  if (prepends && !replaced.starts_with(metaspace.space)) replaced.insert(0, metaspace.space);
  if (!metaspace.split) return run(next, replaced, is_first, call);
  // A word begins at each replaced space.
  const std::string_view all = replaced;
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = std::min(all.find(metaspace.space, begin + 1), all.size());
    run(next, all.substr(begin, end - begin), is_first && begin == 0, call);
    begin = end;
  }
}

void PreTokenizer::apply(const LeadingSpace&, std::size_t next, std::string_view text, bool is_first,
                         const Call& call) const {
  if (text.starts_with(' ')) return run(next, text, is_first, call);
  run(next, ' ' + std::string(text), is_first, call);
}

}  // namespace tessera::text
