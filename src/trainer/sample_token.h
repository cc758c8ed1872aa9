// Draws the next token from logits.
#pragma once

#include <cstdint>
#include <span>

#include "tessera/sampling.h"

namespace tessera {

// The token of a text with number `index`, drawn by the uniform value (seed, index) of a stream of its own.
// The same inputs give the same token on every rank. Throws Error if a logit is NaN or the largest is
// infinite. A token with the logit −∞ is never drawn.
std::int32_t sample_token(std::span<const float> logits, const Sampling& sampling, std::uint64_t index);

}  // namespace tessera
