// The twin of the cuda_*.cpp in a build without CUDA.
#include "tessera/device.h"

namespace tessera {

CudaMachine read_cuda_machine() {
  CudaMachine machine;
  machine.unusable = "this build has no CUDA; configure with -DTESSERA_WITH_CUDA=ON";
  return machine;
}

}  // namespace tessera
