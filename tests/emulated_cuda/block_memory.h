// The shared memory of the block that runs, and what its threads copy there.
#pragma once

#include <cstddef>

#include "tests/emulated_cuda/kernels.h"

namespace tessera::emulated_cuda {

// A new block of `threads` begins: all of its shared memory is bytes 0xFF, a NaN in every type. Its dynamic
// shared memory ends where no memory is, up to 15 bytes behind shared_bytes. With copies_arrive_late what it
// copies arrives only when it is waited for, else at once.
void begin_block_memory(const Kernel& kernel, std::size_t shared_bytes, std::size_t threads,
                        bool copies_arrive_late);

}  // namespace tessera::emulated_cuda
