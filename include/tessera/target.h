// What a unit's compute runs on: the device, the number of threads, and the ranks that split a layer.
#pragma once

#include "tessera/device_type.h"

namespace tessera {

// Together with a shape this decides how much memory the compute needs. Converts from a number of threads,
// which means that many on the CPU.
struct Target {
  constexpr Target(int thread_count = 1, DeviceType device_type = DeviceType::cpu, int tensor_ranks = 1,
                   int chunks = 1, int gpu_ordinal = -1)
      : threads(thread_count),
        device(device_type),
        tensor(tensor_ranks),
        exchange_chunks(chunks),
        gpu(gpu_ordinal) {}

  int threads;  // on the CPU; ignored on another device
  DeviceType device;
  int tensor;           // ranks along the mesh's tensor axis
  int exchange_chunks;  // of rows, in which what these exchange travels, see TrainerOptions
  // Which of this process's GPUs computes, on CUDA, and is asked how much memory a library takes on it. -1: a
  // GPU that is not here; the answer is then the most that it takes on any.
  int gpu;
};

}  // namespace tessera
