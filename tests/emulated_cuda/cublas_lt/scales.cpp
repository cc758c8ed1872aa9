#include "tests/emulated_cuda/cublas_lt/scales.h"

#include <cmath>

namespace tessera::emulated_cuda::cublas_lt {
namespace {

constexpr std::int64_t kTile = 128;

std::int64_t tiles(std::int64_t count) { return (count + kTile - 1) / kTile; }
// Squares of one row of squares follow each other; the next row begins at a multiple of four.
std::int64_t squares_pitch(std::int64_t k) { return (tiles(k) + 3) / 4 * 4; }

}  // namespace

std::int64_t Scales::bytes() const {
  switch (mode) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F:
      return 0;  // none is set: 1
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0:
      return tiles(lines) * tiles(k) * kTile * 4;
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:
      return tiles(k) * lines * 4;
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:
      return tiles(lines) * squares_pitch(k) * 4;
  }
  return 0;
}

double Scales::at(std::int64_t line, std::int64_t element) const {
  const auto* const floats = static_cast<const float*>(data);
  switch (mode) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F:
      return 1;
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0: {
      // Squares of 128 lines and 4 scales: 32 times 4 times 4 bytes, of lines 32 apart, then of scales.
      const std::int64_t square = line / kTile * tiles(k) + element / kTile;
      const std::int64_t in = line % 32 * 16 + line % kTile / 32 * 4 + element % kTile / 32;
      return std::ldexp(1.0, static_cast<const unsigned char*>(data)[square * 512 + in] - 127);
    }
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:
      return floats[element / kTile * lines + line];
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:
      return floats[line / kTile * squares_pitch(k) + element / kTile];
  }
  return 0;
}

bool go_together(cublasLtMatmulMatrixScale_t one, cublasLtMatmulMatrixScale_t other) {
  const auto by_128 = [](cublasLtMatmulMatrixScale_t mode) {
    return mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F ||
           mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  };
  if (one == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0) return other == one;
  return by_128(one) && by_128(other) &&
         (one == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F || other == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
}

}  // namespace tessera::emulated_cuda::cublas_lt
