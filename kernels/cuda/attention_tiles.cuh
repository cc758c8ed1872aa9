// Tiles of kTile rows of a head in shared memory, and what a block of attention does with them. A block is
// kSide x kSide threads, of which each owns kPer x kPer places of a tile's products.
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/dropout_math.h"

namespace tessera::kernels::cuda {

constexpr int kTile = 64;
constexpr int kSide = 16;  // a block is kSide x kSide threads: x along keys or channels, y along rows
constexpr int kPer = kTile / kSide;  // rows, and keys, of a thread: y + kSide * i, x + kSide * j
constexpr int kThreads = kSide * kSide;
constexpr int kWeightStride = kTile + 4;  // rows of shared memory begin 16 bytes and 4 banks apart
constexpr int kMostChannels = 128;
static_assert(kPer == 4);

// A tile of kTile rows of a head's channels, padded with zeros to a multiple of kTile.
template <int kChunks>
struct Tile {
  static constexpr int kChannels = kChunks * kTile;
  static constexpr int kStride = kChannels + 4;
  static constexpr int kNumel = kTile * kStride;
};

struct Heads {
  std::int64_t sequence;
  int heads, group, channels;  // query heads; those that share a key and value head; channels of a head
  std::int64_t qkv_channels, model_channels;
  bool vectorized;  // rows begin at, and have, whole vectors of four
  float scale;
  Dropout dropout;
  float dropout_scale;
};

// Where a head of a batch item begins: its query, key and value in a packed tensor, its output, its
// statistics.
struct Place {
  std::int64_t query, key, value, output, statistics;

  __device__ Place(const Heads& h, std::int64_t item, int head) {
    const std::int64_t row = item * h.sequence;
    const int shared = head / h.group;
    query = row * h.qkv_channels + head * h.channels;
    key = row * h.qkv_channels + h.model_channels + shared * h.channels;
    value = key + h.heads / h.group * h.channels;
    output = row * h.model_channels + head * h.channels;
    statistics = (item * h.heads + head) * h.sequence;
  }
};

// tile = scale * rows [first, first + kTile) of a matrix, zeros where it has none.
template <int kChunks, class T>
__device__ inline void load_tile(const Heads& h, const T* matrix, std::int64_t stride, std::int64_t first,
                                 float scale, float* tile) {
  using Shape = Tile<kChunks>;
  constexpr int kVectors = Shape::kChannels / 4;
  for (int i = threadIdx.x; i < kTile * kVectors; i += kThreads) {
    const int row = i / kVectors, channel = i % kVectors * 4;
    float x[4] = {};
    if (first + row < h.sequence) {
      const T* from = matrix + (first + row) * stride + channel;
      if (h.vectorized && channel < h.channels) {
        load(from, x);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (channel + j < h.channels) x[j] = to_float(from[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] *= scale;
    store(x, tile + row * Shape::kStride + channel);
  }
}

template <int kChunks>
using Sums = float[kPer][kChunks * 4];  // a thread's rows, by its channels x * 4 + kTile * chunk + 0 .. 3

// Rows first + y + kSide * i of a matrix = scale * sums.
template <int kChunks, class T>
__device__ inline void store_rows(const Heads& h, const Sums<kChunks>& sums, const float (&scale)[kPer],
                                  std::int64_t first, T* matrix, std::int64_t stride) {
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const std::int64_t row = first + y + kSide * i;
    if (row >= h.sequence) continue;
#pragma unroll
    for (int c = 0; c < kChunks * 4; ++c) {
      const int channel = c / 4 * kTile + x * 4 + c % 4;
      if (channel < h.channels) matrix[row * stride + channel] = from_float<T>(sums[i][c] * scale[i]);
    }
  }
}

// dots[i][j] = row y + kSide * i of left . row x + kSide * j of right.
template <int kChunks>
__device__ inline void dot_rows(const float* left, const float* right, float (&dots)[kPer][kPer]) {
  using Shape = Tile<kChunks>;
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
#pragma unroll
  for (int i = 0; i < kPer; ++i)
#pragma unroll
    for (int j = 0; j < kPer; ++j) dots[i][j] = 0.0f;
#pragma unroll 4
  for (int channel = 0; channel < Shape::kChannels; channel += 4) {
    float a[kPer][4], b[kPer][4];
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      load(left + (y + kSide * i) * Shape::kStride + channel, a[i]);
      load(right + (x + kSide * i) * Shape::kStride + channel, b[i]);
    }
#pragma unroll
    for (int i = 0; i < kPer; ++i)
#pragma unroll
      for (int j = 0; j < kPer; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) dots[i][j] = fmaf(a[i][c], b[j][c], dots[i][j]);
  }
}

// sums += weights values, by rows of weights; or, transposed, by its columns.
template <int kChunks, bool kTransposed>
__device__ inline void add_weighted(const float* weights, const float* values, Sums<kChunks>& sums) {
  using Shape = Tile<kChunks>;
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
#pragma unroll 4
  for (int k = 0; k < kTile; ++k) {
    float weight[kPer];
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int own = y + kSide * i;
      weight[i] = weights[kTransposed ? k * kWeightStride + own : own * kWeightStride + k];
    }
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      float value[4];
      load(values + k * Shape::kStride + chunk * kTile + x * 4, value);
#pragma unroll
      for (int i = 0; i < kPer; ++i)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          sums[i][chunk * 4 + c] = fmaf(weight[i], value[c], sums[i][chunk * 4 + c]);
    }
  }
}

__device__ inline void put_weights(const float (&values)[kPer][kPer], float* weights) {
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
#pragma unroll
  for (int i = 0; i < kPer; ++i)
#pragma unroll
    for (int j = 0; j < kPer; ++j) weights[(y + kSide * i) * kWeightStride + x + kSide * j] = values[i][j];
}

// Which of a tile's probabilities are kept: a bit each, [kTile, kTile / 8] bytes of shared memory. Of a
// kernel that drops nothing it is neither written nor read, and the next two do nothing.
using KeptTile = std::uint8_t[kTile * kTile / 8];

// Of the tile that begins at a query and a key of a head; to be read behind a barrier.
template <bool kDrops>
__device__ inline void draw_tile(const Heads& h, std::int64_t item, int head, std::int64_t first_query,
                                 std::int64_t first_key, KeptTile& kept) {
  if constexpr (kDrops) {
    constexpr int kBytes = kTile / 8;
    for (int i = threadIdx.x; i < kTile * kBytes; i += kThreads)
      kept[i] = static_cast<std::uint8_t>(
          kept_bits(h.dropout,
                    {static_cast<std::uint32_t>(item), static_cast<std::uint32_t>(head),
                     static_cast<std::uint32_t>(first_query + i / kBytes)},
                    static_cast<std::uint32_t>(first_key / 8 + i % kBytes)));
  }
}

// A thread's values, scaled where they are kept, else 0.
template <bool kDrops>
__device__ inline void drop(const Heads& h, const KeptTile& kept, float (&values)[kPer][kPer]) {
  if constexpr (kDrops) {
    const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
#pragma unroll
    for (int i = 0; i < kPer; ++i)
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const unsigned bits = kept[(y + kSide * i) * (kTile / 8) + (x + kSide * j) / 8];
        values[i][j] = (bits >> (x % 8) & 1u) != 0 ? h.dropout_scale * values[i][j] : 0.0f;
      }
  }
}

// As put_weights() of what drop() makes of them; the values stay.
template <bool kDrops>
__device__ inline void put_kept_weights(const Heads& h, const KeptTile& kept,
                                        const float (&values)[kPer][kPer], float* weights) {
  float dropped[kPer][kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i)
#pragma unroll
    for (int j = 0; j < kPer; ++j) dropped[i][j] = values[i][j];
  drop<kDrops>(h, kept, dropped);
  put_weights(dropped, weights);
}

// Over the kSide threads of a row.
template <class Combine>
__device__ inline float row_combine(float value, Combine combine) {
#pragma unroll
  for (int apart = kSide / 2; apart > 0; apart /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, apart));
  return value;
}

}  // namespace tessera::kernels::cuda
