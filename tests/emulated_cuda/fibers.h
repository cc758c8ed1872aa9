// The threads of the block that runs, as fibers, and the barriers and shuffles at which they meet.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <string>

namespace tessera::emulated_cuda {

constexpr unsigned kWarp = 32;

// In which order the threads of a block run: warps from the first to the last or the other way around, begun
// at one of them, and lanes by `lane ^ lane_xor`. Blocks without whole warps run from the first thread to the
// last.
struct ThreadOrder {
  bool warps_backwards = false;
  unsigned first_warp = 0;
  unsigned lane_xor = 0;

  // That of the turn-th block that a process runs: forwards, backwards, drawn, and the opposite of that. A
  // barrier that is missing shows in one of two opposite orders.
  static ThreadOrder of_turn(unsigned turn, unsigned warps, unsigned drawn);
};

// Runs `thread` for each of the `threads` of the block `blockIdx`. Ends the process, by fail(), where a GPU
// would not go on, or where what it does is undefined: threads at barriers that the others never reach,
// threads at different barriers or shuffles, shuffles with lanes that have ended. One block at a time.
void run_block(dim3 threads, const ThreadOrder& order, const std::function<void()>& thread);

// The place of the running thread in the order of its block.
std::size_t running_fiber();

// Ends the process with a message that names the running kernel, its block and its thread.
[[noreturn]] void fail(const std::string& what);
// For these messages.
void set_running_kernel(const char* name);

}  // namespace tessera::emulated_cuda
