// Matrices in fp8: values in e4m3 and a scale for each tile (fp8_math.h), as matmul_fp8.h multiplies them.
#pragma once

#include <cstdint>

#include "kernels/context.h"
#include "kernels/fp8_math.h"
#include "kernels/host_device.h"

namespace tessera::kernels {

// The elements that share a scale.
enum class Fp8Tiles : std::uint8_t {
  vectors,  // 128 consecutive elements of a row: of activations and gradients
  blocks    // 128 rows by 128 columns: of weights
};

// The result has `rows` rows of `columns` elements, along which a product sums. Tiles begin at multiples of
// 128; the last ones of a row or column may be smaller. All extents and the stride are multiples of 16.
struct QuantizeShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  bool transposed = false;  // the input is stored [columns, rows] instead of [rows, columns]
  std::int64_t stride = 0;  // elements from one stored row of the input to the next; 0: dense
  Fp8Tiles tiles = Fp8Tiles::vectors;

  TESSERA_HOST_DEVICE constexpr std::int64_t input_stride() const {
    return stride > 0 ? stride : transposed ? rows : columns;
  }
  TESSERA_HOST_DEVICE constexpr std::int64_t tiles_across() const {
    return (columns + kFp8Tile - 1) / kFp8Tile;
  }
  // Where the scale of the tile lies that the element is in: as cuBLASLt wants it. For vectors, rows follow
  // each other. For blocks, those of a row do, and the next begin at a multiple of 4; what lies between is
  // not written.
  TESSERA_HOST_DEVICE constexpr std::int64_t scale_at(std::int64_t row, std::int64_t column) const {
    const std::int64_t across = column / kFp8Tile;
    if (tiles == Fp8Tiles::vectors) return across * rows + row;
    return row / kFp8Tile * ((tiles_across() + 3) / 4 * 4) + across;
  }
  TESSERA_HOST_DEVICE constexpr std::int64_t scale_numel() const {
    if (tiles == Fp8Tiles::vectors) return tiles_across() * rows;
    return (rows + kFp8Tile - 1) / kFp8Tile * ((tiles_across() + 3) / 4 * 4);
  }
};

// input, in bf16, becomes values [rows, columns], a byte each, and scales: input = value · scale but for the
// rounding to nearest, ties to even. A tile with an infinity or NaN becomes NaN. The same bits for any thread
// count, instruction set and backend. On CUDA input, values and scales begin at multiples of 16 bytes.
void quantize(const ComputeContext& context, const QuantizeShape& shape, const void* input, void* values,
              float* scales);

}  // namespace tessera::kernels
