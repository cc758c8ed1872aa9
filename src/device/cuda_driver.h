// Calls of the NVIDIA driver, which is not linked.
#pragma once

namespace tessera::device {

// The address of a call as CUDA 12 has it; null where the driver has none of this name.
void* find_driver_call(const char* name) noexcept;

}  // namespace tessera::device
