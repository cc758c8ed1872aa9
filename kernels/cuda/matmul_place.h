// Where the operands of a matrix product lie, as far as the choice of its algorithm depends on that. Plain
// functions of addresses, compiled for the host and tested there.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/check.h"
#include "kernels/matmul.h"
#include "tessera/error.h"
#include "tessera/shape.h"

namespace tessera::kernels::cuda {

// What any product may use, whatever the GPU: a plan does not depend on the machine it is made on.
inline constexpr std::int64_t kMatmulWorkspaceBytes = 32 << 20;
inline constexpr std::int64_t kWorkspaceAlignment = 256;
// What an algorithm is told of a bias, which it may read by whole vectors.
inline constexpr int kBiasAlignment = 16;

struct MatmulPlace {
  // Of each matrix. No algorithm takes less than an element of that matrix, so a bf16 operand's is not an
  // fp32 result's.
  int a = 0, b = 0, c = 0;
  std::int64_t bias_copy_bytes = 0;  // of the workspace, which the algorithm does not get
};

// The largest power of two up to 16 that divides the address: 16 for what lies in an arena, rows included,
// unless a row is no multiple of it.
inline int alignment_of(const void* operand) {
  const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(operand) | 16;
  return static_cast<int>(bits & -bits);
}

// A bias that no vector could be read from is copied to the front of the workspace.
inline MatmulPlace place_of(const MatmulShape& shape, const void* a, const void* b, const void* bias,
                            const void* c) {
  MatmulPlace place{.a = alignment_of(a), .b = alignment_of(b), .c = alignment_of(c)};
  if (alignment_of(bias) >= kBiasAlignment) return place;
  place.bias_copy_bytes = round_up(shape.n * bytes_of(shape.output_type), kWorkspaceAlignment);
  if (place.bias_copy_bytes > kMatmulWorkspaceBytes)
    throw UnsupportedError(describe(shape) + ": on CUDA a bias of so many elements begins at a multiple of " +
                           std::to_string(kBiasAlignment) + " bytes");
  return place;
}

}  // namespace tessera::kernels::cuda
