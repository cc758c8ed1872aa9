#include "kernels/ops.h"

namespace tessera::kernels {

const Ops& cuda_ops() {
#define TESSERA_CUDA_OP(name) .name = cuda::name,
  static constexpr Ops ops = {TESSERA_FOR_EACH_OP(TESSERA_CUDA_OP)};
#undef TESSERA_CUDA_OP
  return ops;
}

}  // namespace tessera::kernels
