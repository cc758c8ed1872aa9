#include "kernels/cuda/scale_bytes.h"

#include "kernels/cuda/start.cuh"
#include "kernels/float_types.h"

namespace tessera::kernels::cuda {
namespace {

// A block of threads for each square of 128 rows and columns, a thread for each row.
__global__ void __launch_bounds__(kFp8Tile)
    scale_bytes_kernel(QuantizeShape s, const float* scales, std::uint32_t* words) {
  const std::int64_t across = s.tiles_across();
  const std::int64_t row = blockIdx.x / across * kFp8Tile + threadIdx.x;
  const std::int64_t column = blockIdx.x % across * kFp8Tile;
  // The exponent as fp32 has it is the byte: both are biased by 127.
  const std::uint32_t byte = row < s.rows ? bits_as<std::uint32_t>(scales[s.scale_at(row, column)]) >> 23 : 0;
  words[scale_word_at(s, row, column)] = byte * 0x01010101u;
}

}  // namespace

void write_scale_bytes(const ComputeContext& context, const QuantizeShape& shape, const float* scales,
                       std::uint32_t* words) {
  const auto squares = static_cast<unsigned>(scale_words(shape) / kFp8Tile);
  start(context, "write_scale_bytes", {dim3(squares), dim3(kFp8Tile)}, scale_bytes_kernel, shape, scales,
        words);
}

}  // namespace tessera::kernels::cuda
