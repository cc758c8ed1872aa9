// How the next token of a text is chosen from a model's logits.
#pragma once

#include <cstdint>

namespace tessera {

// Tokens are ranked by their logits; of equals the one with the lower number is first.
struct Sampling {
  double temperature = 1.0;  // logits are divided by it; 0: the first token, and the rest does not count
  int top_k = 0;             // only so many of the first tokens can be drawn; 0: all
  // Of these, the first ones are left whose probabilities reach this sum; probabilities are at that
  // temperature, and of these tokens alone (nucleus sampling, Holtzman et al. 2020). Above 0, at most 1.
  double top_p = 1.0;
  std::uint64_t seed = 1;  // token n of a text is drawn from (seed, n)
  bool operator==(const Sampling&) const = default;
};

// Throws UsageError naming the field, behind `call`, for a value that means nothing.
void check_sampling(const char* call, const Sampling& sampling);

}  // namespace tessera
