// How a captured stream tells the host how far it has come: a write of a value would be the same one each
// time.
#pragma once

#include <atomic>
#include <cstdint>

#include "kernels/context.h"

namespace tessera::kernels::cuda {

// Adds one to a word of pinned memory of the host, behind what the context's stream was given before. Nobody
// else writes it meanwhile. Counting goes on from 2^32 − 1 to 0.
void advance_word(const ComputeContext& context, std::atomic<std::uint32_t>& word);

}  // namespace tessera::kernels::cuda
