// The twin of cuda/ops.cpp, and of what opens libraries, in a build without CUDA.
#include "kernels/libraries.h"
#include "kernels/ops.h"
#include "tessera/error.h"

namespace tessera::kernels {
namespace {

[[noreturn]] void refuse() {
  throw UnsupportedError(
      "kernels on CUDA: this build has no CUDA; install the CUDA toolkit and configure with "
      "-DTESSERA_WITH_CUDA=ON");
}

}  // namespace

const Ops& cuda_ops() { refuse(); }
void cuda::open_libraries() { refuse(); }

}  // namespace tessera::kernels
