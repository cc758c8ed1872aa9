// How the head of a language model is cut into chunks of rows, and the shapes of a chunk's matrix products.
// All backends use this.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cross_entropy.h"
#include "kernels/matmul.h"
#include "tessera/device_type.h"

namespace tessera::kernels {

struct Chunk {
  std::int64_t begin;
  std::int64_t rows;
};

// Rows of a chunk: chunks are as equal as possible, and none exceeds the bound of
// CrossEntropyShape::chunk_bytes.
inline std::int64_t rows_per_chunk(const CrossEntropyShape& shape, DeviceType device) {
  const auto rows_of = [&](std::int64_t bytes) {
    return std::max<std::int64_t>(1, bytes / (4 * shape.vocabulary));
  };
  const std::int64_t most = shape.chunk_bytes > 0       ? rows_of(shape.chunk_bytes)
                            : device == DeviceType::cpu ? rows_of(CrossEntropyShape::kCpuChunkBytes)
                                                        : CrossEntropyShape::kGpuChunkRows;
  const std::int64_t chunks = (shape.rows + most - 1) / most;
  return (shape.rows + chunks - 1) / chunks;
}

inline std::int64_t chunk_count(const CrossEntropyShape& shape, DeviceType device) {
  const std::int64_t rows = rows_per_chunk(shape, device);
  return (shape.rows + rows - 1) / rows;
}

// Calls function(chunk) for each chunk of rows.
template <class Function>
void for_each_chunk(const CrossEntropyShape& shape, DeviceType device, Function&& function) {
  const std::int64_t rows = rows_per_chunk(shape, device);
  for (std::int64_t begin = 0; begin < shape.rows; begin += rows)
    function(Chunk{begin, std::min(rows, shape.rows - begin)});
}

// `stride`: elements from one row of the logits, or of their gradients, to the next; 0: dense.
inline MatmulShape logits_shape(const CrossEntropyShape& s, std::int64_t rows, std::int64_t stride = 0) {
  return {.m = rows,
          .n = s.vocabulary,
          .k = s.channels,
          .transpose_b = true,
          .ldc = stride,
          .input_type = s.type,
          .output_type = DType::fp32};
}

inline MatmulShape input_gradient_shape(const CrossEntropyShape& s, std::int64_t rows,
                                        std::int64_t stride = 0) {
  return {.m = rows,
          .n = s.channels,
          .k = s.vocabulary,
          .lda = stride,
          .input_type = s.type,
          .output_type = s.type};
}

inline MatmulShape weight_gradient_shape(const CrossEntropyShape& s, std::int64_t rows, float beta,
                                         std::int64_t stride = 0) {
  return {.m = s.vocabulary,
          .n = s.channels,
          .k = rows,
          .transpose_a = true,
          .lda = stride,
          .input_type = s.type,
          .output_type = s.fp32_weight_gradient ? DType::fp32 : s.type,
          .beta = beta};
}

}  // namespace tessera::kernels
