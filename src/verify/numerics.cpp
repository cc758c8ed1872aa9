#include "tessera/numerics.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "tessera/error.h"
#include "tessera/numeric_differences.h"

namespace tessera {
namespace {

constexpr std::string_view kProgram = "program", kRun = "run";

// The first line. Another set of facts is another version.
constexpr std::string_view kVersion = "numerics 1\n";

// Between what a line has; no fact keeps one.
constexpr char kBetween = '\t', kEnd = '\n';

std::string plain(std::string_view text) {
  std::string kept(text);
  std::ranges::replace_if(
      kept, [](char c) { return c == kBetween || c == kEnd; }, ' ');
  return kept;
}

std::string text_of(std::string_view part, const std::vector<NumericFact>& facts) {
  std::string text;
  for (const NumericFact& fact : facts)
    text += fmt::format("{}{}{}{}{}{}", part, kBetween, plain(fact.what), kBetween, plain(fact.value), kEnd);
  return text;
}

std::uint64_t hash_of(std::string_view part, const std::vector<NumericFact>& facts) {
  const std::string text = text_of(part, facts);
  return XXH3_64bits(text.data(), text.size());
}

const NumericFact* find(const std::vector<NumericFact>& facts, std::string_view what) {
  const auto found = std::ranges::find(facts, what, &NumericFact::what);
  return found == facts.end() ? nullptr : &*found;
}

void add_differences(const std::vector<NumericFact>& a, const std::vector<NumericFact>& b,
                     std::vector<NumericDifference>& all) {
  for (const NumericFact& fact : a) {
    const NumericFact* other = find(b, fact.what);
    if (other == nullptr)
      all.push_back({.what = fact.what, .a = fact.value, .b = {}});
    else if (plain(other->value) != plain(fact.value))
      all.push_back({.what = fact.what, .a = fact.value, .b = other->value});
  }
  for (const NumericFact& fact : b)
    if (find(a, fact.what) == nullptr) all.push_back({.what = fact.what, .a = {}, .b = fact.value});
}

// What is in front of the next `behind`, which is dropped, too.
std::string_view take(std::string_view& text, char behind) {
  const std::size_t end = text.find(behind);
  if (end == std::string_view::npos)
    throw UsageError(fmt::format("numerics: a line is not a part, a fact and its value: '{}'", text));
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(end + 1);
  return taken;
}

}  // namespace

std::string fingerprint_of(const Numerics& numerics) {
  return fmt::format("{:016x}-{:016x}", hash_of(kProgram, numerics.program), hash_of(kRun, numerics.run));
}

std::vector<NumericDifference> differences(const Numerics& a, const Numerics& b) {
  std::vector<NumericDifference> all;
  add_differences(a.run, b.run, all);
  add_differences(a.program, b.program, all);
  return all;
}

std::string in_words(const NumericDifference& difference, std::string_view of_a, std::string_view of_b) {
  return fmt::format("{}: {} {}, {} {}", difference.what, difference.a.value_or("nothing"), of_a,
                     difference.b.value_or("nothing"), of_b);
}

std::string to_text(const Numerics& numerics) {
  return std::string(kVersion) + text_of(kProgram, numerics.program) + text_of(kRun, numerics.run);
}

Numerics numerics_of_text(std::string_view text) {
  if (!text.starts_with(kVersion))
    throw UsageError("numerics: the text is of another version of Tessera, or none of its own");
  text.remove_prefix(kVersion.size());
  Numerics numerics;
  while (!text.empty()) {
    const std::string_view part = take(text, kBetween);
    if (part != kProgram && part != kRun)
      throw UsageError(fmt::format("numerics: '{}' is no part; there are program and run", part));
    NumericFact fact;
    fact.what = take(text, kBetween);
    fact.value = take(text, kEnd);
    (part == kProgram ? numerics.program : numerics.run).push_back(std::move(fact));
  }
  return numerics;
}

}  // namespace tessera
