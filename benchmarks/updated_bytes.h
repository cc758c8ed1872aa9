// What an optimizer's update must move, at the least.
#pragma once

#include <cstdint>

namespace tessera {

// AdamW on a 16-bit parameter reads its gradient, master and two moments, and writes the last three and the
// parameter: 2 + 3 · (4 + 4) + 2 bytes. On a 32-bit one, which is its own master: 4 + 3 · (4 + 4).
constexpr std::int64_t kUpdatedBytes = 28;

}  // namespace tessera
