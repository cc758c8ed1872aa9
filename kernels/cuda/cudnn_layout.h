// Which shapes of attention cuDNN computes, in which slices, with how much memory, and how it sees the
// tensors. Plain functions of shapes, compiled for the host and tested there, also in builds without cuDNN.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/launch.h"

namespace tessera::kernels::cuda {

inline constexpr std::int64_t kMostCudnnChannels = 128;     // of a head
inline constexpr std::int64_t kSpareBytes = 1 << 20;        // for what cuDNN needs besides the counted bytes
inline constexpr std::int64_t kSliceBytes = 512 << 20;      // slices of backward are cut to fit into this
inline constexpr std::int64_t kMostSliceBytes = 4ll << 30;  // the most for a slice that cannot be cut
inline constexpr std::int64_t kDeltaBytes = 4, kBf16Bytes = 2;

// The part of the work that one call of backward does: some batch items with all heads, or one item with some
// key and value heads and the query heads that share them.
struct AttentionSlice {
  std::int64_t items = 0;
  std::int64_t kv_heads = 0;
  bool operator==(const AttentionSlice&) const = default;
};

inline std::int64_t group_of(const AttentionShape& shape) { return shape.heads / shape.kv_heads_or_heads(); }

inline AttentionSlice whole(const AttentionShape& shape) {
  return {.items = shape.batch, .kv_heads = shape.kv_heads_or_heads()};
}

// The most memory that a deterministic backward needs on any GPU that cuDNN 9.19 has kernels for: a bound.
// What it takes on a GPU that is here, cudnn_attention.h asks cuDNN. It counts delta for every row; on Ampere
// and Hopper the gradients of all weights in bf16, with rows and columns padded to 128; and, if query heads
// share key and value heads, the gradients of those for every query head, which are fp32 on Blackwell.
inline std::int64_t cudnn_slice_bytes(const AttentionShape& shape, const AttentionSlice& slice) {
  const std::int64_t heads = slice.items * slice.kv_heads * group_of(shape);
  const std::int64_t padded = ceil_div(shape.sequence, 128) * 128;
  const std::int64_t shared = group_of(shape) > 1 ? 2 * 4 * shape.head_channels() : 0;
  return heads * (shape.sequence * (kDeltaBytes + shared) + padded * padded * kBf16Bytes) + kSpareBytes;
}

// The largest slice that fits into kSliceBytes and divides the batch or, if no whole item fits, divides one
// item's heads. The smallest slice if none fits.
inline AttentionSlice backward_slice(const AttentionShape& shape) {
  const auto largest = [&](std::int64_t count, auto slice_of) {
    std::int64_t parts = 1;
    while (parts < count &&
           (count % parts != 0 || cudnn_slice_bytes(shape, slice_of(count / parts)) > kSliceBytes))
      ++parts;
    return slice_of(count / parts);
  };
  const AttentionSlice items = largest(shape.batch, [&](std::int64_t some) {
    return AttentionSlice{some, shape.kv_heads_or_heads()};
  });
  if (items.items > 1 || cudnn_slice_bytes(shape, items) <= kSliceBytes) return items;
  return largest(shape.kv_heads_or_heads(), [](std::int64_t some) { return AttentionSlice{1, some}; });
}

// The shapes for which cuDNN has kernels on all GPUs of this project. A sequence of one row has no backward
// there.
inline bool cudnn_forward_fits(const AttentionShape& shape) {
  return shape.type == DType::bf16 && shape.dropout.threshold == 0 && shape.batch >= 1 &&
         shape.sequence >= 2 && shape.head_channels() % 8 == 0 && shape.head_channels() <= kMostCudnnChannels;
}
// The product of heads and rows must be a multiple of 4, because slices of log_sum_exp, and what follows
// delta in the workspace, begin at multiples of 16 bytes.
inline bool cudnn_backward_fits(const AttentionShape& shape) {
  if (!cudnn_forward_fits(shape)) return false;
  const AttentionSlice slice = backward_slice(shape);
  const std::int64_t heads = slice == whole(shape) ? shape.batch * shape.heads : 1;
  return heads * shape.sequence % 4 == 0 && cudnn_slice_bytes(shape, slice) <= kMostSliceBytes;
}

// A tensor as cuDNN sees it: [items, heads, sequence, channels], strides in elements.
struct CudnnLayout {
  std::array<std::int64_t, 4> dims, strides;
};

struct CudnnLayouts {
  CudnnLayout query, key_value;  // in the packed tensor, or its gradient
  CudnnLayout output;            // and its gradient
  CudnnLayout statistics;        // log_sum_exp
};

inline CudnnLayouts cudnn_layouts(const AttentionShape& shape, const AttentionSlice& slice) {
  const std::int64_t d = shape.head_channels(), s = shape.sequence, heads = slice.kv_heads * group_of(shape);
  const std::int64_t row = shape.qkv_channels();
  return {.query = {{slice.items, heads, s, d}, {s * row, d, row, 1}},
          .key_value = {{slice.items, slice.kv_heads, s, d}, {s * row, d, row, 1}},
          .output = {{slice.items, heads, s, d}, {s * shape.channels, d, shape.channels, 1}},
          .statistics = {{slice.items, heads, s, 1}, {heads * s, s, 1, 1}}};
}

// Where a slice begins, in elements.
struct CudnnOffsets {
  std::int64_t query = 0, key = 0, value = 0;  // in the packed tensor
  std::int64_t output = 0;
  std::int64_t statistics = 0;
};

inline CudnnOffsets cudnn_offsets(const AttentionShape& shape, std::int64_t item, std::int64_t kv_head) {
  const std::int64_t d = shape.head_channels(), row = item * shape.sequence, head = kv_head * group_of(shape);
  const std::int64_t key = row * shape.qkv_channels() + shape.channels + kv_head * d;
  return {.query = row * shape.qkv_channels() + head * d,
          .key = key,
          .value = key + shape.kv_heads_or_heads() * d,
          .output = row * shape.channels + head * d,
          .statistics = (item * shape.heads + head) * shape.sequence};
}

}  // namespace tessera::kernels::cuda
