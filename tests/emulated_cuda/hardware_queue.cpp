#include "tests/emulated_cuda/hardware_queue.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "tests/emulated_cuda/calls.h"

namespace tessera::emulated_cuda {

std::shared_ptr<HardwareQueue> HardwareQueue::join(int gpu) {
  static std::mutex mutex;
  static auto* const of_gpus = new std::array<std::vector<std::shared_ptr<HardwareQueue>>, kGpus>;
  const std::lock_guard lock(mutex);
  auto& queues = (*of_gpus)[static_cast<std::size_t>(gpu)];
  while (queues.size() < hardware_queues()) queues.push_back(std::make_shared<HardwareQueue>());
  return *std::ranges::min_element(queues, {}, [](const auto& queue) { return queue.use_count(); });
}

void HardwareQueue::wait_for_turn(std::uint64_t place) const {
  for (std::uint64_t head = head_.load(); head != place; head = head_.load()) head_.wait(head);
}

void HardwareQueue::leave(std::uint64_t place) {
  head_.store(place + 1);
  head_.notify_all();
}

unsigned hardware_queues() {
  static constexpr unsigned kMost = 32, kDefault = 8;
  static const unsigned count = [] {
    const char* const text = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    return text == nullptr ? kDefault : std::clamp(static_cast<unsigned>(std::atoi(text)), 1u, kMost);
  }();
  return count;
}

}  // namespace tessera::emulated_cuda
