// Draws the next token from logits.
#pragma once

#include <cstdint>
#include <span>

namespace tessera {

// temperature 0: the first token with the largest logit; above: from softmax(logits / temperature), by the
// uniform value (seed, index) of a stream of its own. The same inputs give the same token on every rank.
// Error where a logit is no number or the largest is infinite; −∞ is a token that is not drawn.
std::int32_t sample_token(std::span<const float> logits, double temperature, std::uint64_t seed,
                          std::uint64_t index);

}  // namespace tessera
