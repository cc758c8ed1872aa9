// Why a test that needs several GPUs cannot run here.
#pragma once

#include <string>

#include "tessera/communicator.h"
#include "tessera/machine.h"

namespace tessera::contract {

// Empty where a world of so many can be made.
inline std::string missing_gpus(int world) {
  if (const std::string why = read_nccl_library().unusable; !why.empty()) return why;
  const CudaMachine machine = read_cuda_machine();
  if (!machine.unusable.empty()) return machine.unusable;
  const auto gpus = static_cast<int>(machine.gpus.size());
  return gpus >= world ? std::string()
                       : std::to_string(gpus) + " GPUs are here, the test needs " + std::to_string(world);
}

}  // namespace tessera::contract
