// Where the numerics of two runs differ. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/numerics.h"

namespace tessera {

// A fact that two runs do not share.
struct NumericDifference {
  std::string what;
  std::optional<std::string> a, b;  // none where one has no such fact
};
// All of them, those of the run first: where model or batch differ, so does much of what programs make of
// them.
std::vector<NumericDifference> differences(const Numerics& a, const Numerics& b);
// "optimizer.beta2: 0.95 now, 0.999 in the checkpoint", where the two are `of_a`, "now", and `of_b`.
std::string in_words(const NumericDifference& difference, std::string_view of_a, std::string_view of_b);

}  // namespace tessera
