// A rank's emulated GPU, and its world over it.
#pragma once

#include <gtest/gtest.h>

#include "tessera/device.h"
#include "tests/comm/contract.h"
#include "tests/emulated_cuda/emulator.h"

namespace tessera::emulated_cuda {

struct GpuRank {
  explicit GpuRank(const Communicator& host)
      : device(make_cuda_device({.rank = host.rank(), .ordinal = host.rank(), .deadline = kDeadline})),
        world(make_nccl_world(host, {.deadline = kDeadline})) {
    world.attach(device->failure());
  }
  std::unique_ptr<Stream> make_stream(const std::string& name) {
    return device->make_stream({.name = name, .on_caller = true, .cpus = {}});
  }

  static constexpr std::chrono::milliseconds kDeadline{20'000};
  std::unique_ptr<Device> device;
  Communicator world;
};

}  // namespace tessera::emulated_cuda
