// Draws the next token from logits.
#pragma once

#include <cstdint>
#include <span>

namespace tessera {

// With temperature 0, returns the first token with the largest logit. Above 0, draws from softmax(logits /
// temperature) by the uniform value (seed, index) of a stream of its own. The same inputs give the same token
// on every rank. Throws Error if a logit is NaN or the largest is infinite. A token with the logit −∞ is
// never drawn.
std::int32_t sample_token(std::span<const float> logits, double temperature, std::uint64_t seed,
                          std::uint64_t index);

}  // namespace tessera
