// Copies of bytes.
#pragma once

#include <cstdint>

namespace tessera::kernels {

// memcpy on the calling thread. Null pointers are allowed for 0 bytes. Copies that are too large for the
// caches bypass them: the target's lines are not read first, and the caches keep their contents.
void copy(void* to, const void* from, std::int64_t bytes);

}  // namespace tessera::kernels
