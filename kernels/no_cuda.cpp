// The twin of cuda/ops.cpp in a build without CUDA.
#include "kernels/ops.h"
#include "tessera/error.h"

namespace tessera::kernels {

const Ops& cuda_ops() {
  throw UnsupportedError(
      "kernels on CUDA: this build has no CUDA; install the CUDA toolkit and configure with "
      "-DTESSERA_WITH_CUDA=ON");
}

}  // namespace tessera::kernels
