// A GPU takes what its streams give from a few queues, each in order. What is at the head of one and waits,
// for an event or for a word of the host's memory, holds up what other streams put behind it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace tessera::emulated_cuda {

class HardwareQueue {
 public:
  // Of the GPU's queues the one that the fewest streams have; given back with the last copy.
  static std::shared_ptr<HardwareQueue> join(int gpu);

  // The next place. Called in the order in which streams are given work.
  std::uint64_t take_place() { return taken_.fetch_add(1); }
  // Until all places before it were left.
  void wait_for_turn(std::uint64_t place) const;
  void leave(std::uint64_t place);

 private:
  std::atomic<std::uint64_t> taken_{0}, head_{0};
};

// CUDA_DEVICE_MAX_CONNECTIONS at the process's first call, 1 to 32; 8 if unset. Called by every call.
unsigned hardware_queues();

}  // namespace tessera::emulated_cuda
