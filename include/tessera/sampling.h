// How the next token of a text is chosen from a model's logits.
#pragma once

#include <cstdint>

namespace tessera {

// Tokens are ranked by their logits; of equals the one with the lower number is first.
struct Sampling {
  double temperature = 1.0;  // logits are divided by it; 0: the first token, and the rest does not count
  int top_k = 0;             // only so many of the first tokens can be drawn; 0: all
  // Among those top_k, only the first tokens whose probabilities add up to this can be drawn (nucleus
  // sampling, Holtzman et al. 2020). Probabilities are at the temperature, and are 1 over the top_k together.
  // Above 0, at most 1.
  double top_p = 1.0;
  std::uint64_t seed = 1;  // token n of a text is drawn from (seed, n)
  bool operator==(const Sampling&) const = default;
};

// Throws UsageError naming the field, behind `call`, for a value that means nothing.
void check_sampling(const char* call, const Sampling& sampling);

}  // namespace tessera
