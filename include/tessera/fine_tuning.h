// Floor 7: which of a model's parameters are trained, and how fast. Patterns are over the names of
// parameters, such as "block.0.attention.qkv.weight"; "*" stands for any characters, also none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/module.h"

namespace tessera {

// Whether the pattern matches all of the name.
bool matches_pattern(std::string_view pattern, std::string_view name);
// The names of the model's parameters that the pattern matches, in the model's order, tied ones included.
// Throws UsageError where there are none, naming the nearest name. `key` is what a message calls the pattern.
std::vector<std::string> matching_parameters(const Model& model, std::string_view pattern,
                                             std::string_view key);

// The same model, in which the parameters that a pattern matches are frozen: they have no gradient and no
// optimizer state, and parts of backward that only they need do not run. A parameter that is tied is frozen
// with the one that it is tied to, whichever of the names a pattern matches. Call it ahead of
// with_tensor_blocks(). Throws UsageError for a pattern that matches none, and where nothing would be
// trained.
Model with_frozen(Model model, const std::vector<std::string>& patterns, std::string_view key = "frozen");

// A factor on the schedule's learning rate for the parameters that a pattern matches.
struct LearningRateFactor {
  std::string pattern;
  double factor = 1.0;
};
// The same model with groups for the factors (Model::groups and rate_factors). Call it behind with_frozen().
// Throws UsageError for a factor that is not above 0 and finite, for a pattern that matches no parameter that
// is trained, and for a parameter that two patterns match.
Model with_rate_factors(Model model, const std::vector<LearningRateFactor>& factors,
                        std::string_view key = "rates");

}  // namespace tessera
