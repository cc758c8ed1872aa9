// Copies of bytes.
#pragma once

#include <cstdint>

namespace tessera::kernels {

// As memcpy, on the calling thread; null pointers are allowed for no bytes. Copies too large for the caches
// go past them: the target's lines are not read first, and what the caches hold stays there.
void copy(void* to, const void* from, std::int64_t bytes);

}  // namespace tessera::kernels
