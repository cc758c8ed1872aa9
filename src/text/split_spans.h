// The parts of a text that a split keeps.
#pragma once

#include <cstddef>
#include <functional>

#include "src/text/pre_tokenizer.h"
#include "src/text/regex.h"

namespace tessera::text {

struct SplitRule {
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // what does not match takes the part of a match
};

// Calls use(span) for each part of a text of `bytes` that the rule keeps, in order. A part may be empty.
void for_splits(RegexMatches& matches, std::size_t bytes, SplitRule rule,
                const std::function<void(Span)>& use);

}  // namespace tessera::text
