// Where compute runs, and by how many threads.
#pragma once

#include "tessera/device_type.h"

namespace tessera {

// What an op's need of scratch memory depends on besides its shape. A number of threads is a target: so many
// on the CPU.
struct Target {
  constexpr Target(int thread_count = 1, DeviceType device_type = DeviceType::cpu)
      : threads(thread_count), device(device_type) {}

  int threads;  // of the CPU; on another device they mean nothing
  DeviceType device;
};

}  // namespace tessera
