// The threads of the block that runs, as fibers.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>

namespace tessera::emulated_cuda {

constexpr unsigned kWarp = 32;

// Runs `thread` for each of the `threads` of the block `blockIdx`; in every second one from the last to the
// first. Ends the process where threads wait at barriers that the others never reach. One block at a time.
void run_block(dim3 threads, const std::function<void()>& thread);

// Of the block that runs: the place of its running thread in the order in which they run, and whether that is
// from the last to the first.
std::size_t running_fiber();
bool runs_backwards();

}  // namespace tessera::emulated_cuda
