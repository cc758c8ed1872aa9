// How much workspace a matrix product has.
#pragma once

#include <cstdint>

namespace tessera::kernels::cuda {

// The same for any product on every GPU, so that a plan does not depend on the machine it is made on.
inline constexpr std::int64_t kMatmulWorkspaceBytes = 32 << 20;

}  // namespace tessera::kernels::cuda
