// The alignment of a matrix product's operands, on which the choice of its algorithm depends. Plain functions
// of addresses, compiled for the host and tested there.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/check.h"
#include "kernels/cuda/matmul_workspace.h"
#include "kernels/matmul.h"
#include "tessera/error.h"
#include "tessera/shape.h"

namespace tessera::kernels::cuda {

inline constexpr std::int64_t kWorkspaceAlignment = 256;
// The alignment that a bias must have, because an algorithm may read it in whole vectors.
inline constexpr int kBiasAlignment = 16;

struct MatmulPlace {
  // The alignment of each matrix, in bytes. No algorithm takes less than one element of that matrix, so the
  // least for a bf16 operand differs from that for an fp32 result.
  int a = 0, b = 0, c = 0;
  std::int64_t bias_copy_bytes = 0;  // the part of the workspace that a copy of the bias takes from the
                                     // algorithm
};

// The largest power of two, up to 16, that divides the address. It is 16 for tensors in an arena, and for
// their rows if a row's bytes are a multiple of 16.
inline int alignment_of(const void* operand) {
  const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(operand) | 16;
  return static_cast<int>(bits & -bits);
}

// A bias that is not aligned for vectors is copied to the front of the workspace.
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
