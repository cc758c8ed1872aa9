// The device on which compute runs, and the number of threads.
#pragma once

#include "tessera/device_type.h"

namespace tessera {

// Together with an op's shape this decides how much scratch memory the op needs. Converts from a number of
// threads, which means that many on the CPU.
struct Target {
  constexpr Target(int thread_count = 1, DeviceType device_type = DeviceType::cpu)
      : threads(thread_count), device(device_type) {}

  int threads;  // on the CPU; ignored on another device
  DeviceType device;
};

}  // namespace tessera
