#include "kernels/ops.h"

namespace tessera::kernels {

const Ops& cpu_ops() {
#define TESSERA_CPU_OP(name) .name = cpu::name,
  static constexpr Ops ops = {TESSERA_FOR_EACH_OP(TESSERA_CPU_OP)};
#undef TESSERA_CPU_OP
  return ops;
}

}  // namespace tessera::kernels
