// Libraries by which kernels compute.
#pragma once

#include "tessera/device_type.h"

namespace tessera::kernels {

// Makes what kernels need of libraries on the calling thread, instead of in the first call that needs it: on
// CUDA a handle of cuBLASLt for the thread's current GPU, whose memory it takes; and of cuDNN a handle and
// the graphs of all attention whose workspace this process asked for on that GPU. Does nothing on the CPU.
// Throws as matmul() and attention do.
void open_libraries(DeviceType device);

namespace cuda {
void open_libraries();
}

}  // namespace tessera::kernels
