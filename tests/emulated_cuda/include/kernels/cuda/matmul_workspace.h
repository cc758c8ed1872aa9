// Stands in for the file of this name in kernels/cuda. Each page that is written once makes every later
// access to the emulated GPU's memory slower, so the workspace is smaller here than on a GPU.
#pragma once

#include <cstdint>

namespace tessera::kernels::cuda {

inline constexpr std::int64_t kMatmulWorkspaceBytes = 256 << 10;

}  // namespace tessera::kernels::cuda
