// Emulated NCCL's own sum: in the type of what is summed, from another rank on each rank.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "kernels/float_types.h"
#include "tests/emulated_cuda/emulator.h"

namespace tessera::emulated_cuda {

// What one reduction receives, until all of it has come.
struct Sum {
  ncclDataType_t type;
  std::size_t count;
  void* to;
  int gpu;
  std::vector<std::vector<char>> parts;  // [rank]
  std::size_t come = 0;

  void take(int from, std::vector<char> part, int own) {
    parts[static_cast<std::size_t>(from)] = std::move(part);
    if (++come < parts.size()) return;
    come = 0;  // a captured call does it again
    const Access access(gpu);
    if (type == ncclFloat32) return add<float>(own);
    if (type == ncclBfloat16) return add<kernels::Bf16>(own);
    add<kernels::Fp16>(own);
  }
  template <class T>
  void add(int own) {
    const auto ranks = static_cast<int>(parts.size());
    auto* const sums = static_cast<T*>(to);
    for (std::size_t i = 0; i < count; ++i) {
      const auto of = [&](int rank) {
        return reinterpret_cast<const T*>(parts[static_cast<std::size_t>(rank)].data())[i];
      };
      T sum = of((own + 1) % ranks);
      for (int step = 2; step <= ranks; ++step)
        sum = kernels::from_float<T>(kernels::to_float(sum) + kernels::to_float(of((own + step) % ranks)));
      sums[i] = sum;
    }
  }
};

}  // namespace tessera::emulated_cuda
