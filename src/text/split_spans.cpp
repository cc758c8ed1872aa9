#include "src/text/split_spans.h"

#include <algorithm>
#include <vector>

namespace tessera::text {

namespace {

struct Part {
  Span span;
  bool is_match = false;
};

// The text as matches and what lies between them.
template <typename Use>
void for_matches(RegexMatches& matches, std::size_t bytes, const Use& use) {
  std::size_t end = 0;
  for (Span match; matches.next(match); end = match.end) {
    if (end != match.begin) use(Part{.span = {end, match.begin}});
    use(Part{.span = match, .is_match = true});
  }
  if (end != bytes) use(Part{.span = {end, bytes}});
}

// Joins each part with the one before it in `parts` where `joins` says so, of the part and whether the one
// before matched.
template <typename Joins>
std::vector<Span> join(const std::vector<Part>& parts, const Joins& joins) {
  std::vector<Span> result;
  bool previous = false;
  for (const Part& part : parts) {
    if (joins(part.is_match, previous) && !result.empty()) {
      result.back().begin = std::min(result.back().begin, part.span.begin);
      result.back().end = std::max(result.back().end, part.span.end);
    } else {
      result.push_back(part.span);
    }
    previous = part.is_match;
  }
  return result;
}

std::vector<Span> joined(std::vector<Part> parts, SplitBehavior behavior) {
  const auto delimiter = [](bool is_match, bool previous) { return is_match && !previous; };
  const auto alike = [](bool is_match, bool previous) { return is_match == previous; };
  if (behavior == SplitBehavior::contiguous) return join(parts, alike);
  if (behavior == SplitBehavior::merged_with_previous) return join(parts, delimiter);
  std::ranges::reverse(parts);
  std::vector<Span> result = join(parts, delimiter);
  std::ranges::reverse(result);
  return result;
}

}  // namespace

void for_splits(RegexMatches& matches, std::size_t bytes, SplitRule rule,
                const std::function<void(Span)>& use) {
  if (rule.behavior == SplitBehavior::isolated)
    return for_matches(matches, bytes, [&](const Part& part) { use(part.span); });
  if (rule.behavior == SplitBehavior::removed) {
    return for_matches(matches, bytes, [&](const Part& part) {
      if (part.is_match == rule.invert) use(part.span);
    });
  }
  std::vector<Part> parts;
  for_matches(matches, bytes, [&](Part part) {
    part.is_match = part.is_match != rule.invert;
    parts.push_back(part);
  });
  for (const Span span : joined(std::move(parts), rule.behavior)) use(span);
}

}  // namespace tessera::text
