#include "tessera/numerics.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "tessera/error.h"

namespace tessera {
namespace {

constexpr std::string_view kProgram = "program", kRun = "run";

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

std::optional<NumericDifference> first_of(const std::vector<NumericFact>& a,
                                          const std::vector<NumericFact>& b) {
  const auto [at, other] = std::ranges::mismatch(a, b);
  if (at == a.end() && other == b.end()) return std::nullopt;
  return NumericDifference{.a = at == a.end() ? NumericFact() : *at,
                           .b = other == b.end() ? NumericFact() : *other};
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

// The run's first: where the model or the batch differ, so does much of what programs make of them.
std::optional<NumericDifference> first_difference(const Numerics& a, const Numerics& b) {
  if (auto found = first_of(a.run, b.run)) return found;
  return first_of(a.program, b.program);
}

std::string in_words(const NumericDifference& difference, std::string_view of_a, std::string_view of_b) {
  const auto& [a, b] = difference;
  if (a.what == b.what) return fmt::format("{} is {} {} and {} {}", a.what, a.value, of_a, b.value, of_b);
  const auto words = [](const NumericFact& fact) {
    return fact.what.empty() ? std::string("nothing more") : fmt::format("{}, {},", fact.what, fact.value);
  };
  return fmt::format("there is {} {}, where there is {} {}", words(a), of_a, words(b), of_b);
}

std::string to_text(const Numerics& numerics) {
  return text_of(kProgram, numerics.program) + text_of(kRun, numerics.run);
}

Numerics numerics_of_text(std::string_view text) {
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
