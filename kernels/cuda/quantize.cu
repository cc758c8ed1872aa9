// A block of threads makes a square of at most 128 rows and columns of the result. It reads the square once,
// by vectors, and keeps it until the largest magnitudes are known.
#include "kernels/quantize.h"

#include <string>

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/start.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/fp8_math.h"
#include "kernels/ops.h"
#include "tessera/error.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int kGroup = 16;                      // elements of the result in one store
constexpr int kGroups = kFp8Tile / kGroup;      // of a row of the square
constexpr int kHalf = kVectorBytes / 2;         // elements of the input in one load
constexpr int kRowsAtOnce = kBlock / kGroups;   // of the square, a thread for each group
constexpr int kTurns = kFp8Tile / kRowsAtOnce;  // so many for all of its rows

using Load = Pack<Bf16, kHalf>;
using Store = Pack<std::uint8_t, kGroup>;

// Magnitudes are compared as integers, as which they are exact in a float too.
__device__ inline float larger(float a, float b) { return a > b ? a : b; }

__device__ inline float magnitude_of(Bf16 x) { return static_cast<float>(x.bits & 0x7fffu); }

__device__ inline TileScale scale_of(float largest) {
  return tile_scale(static_cast<std::uint32_t>(largest));
}

// The largest over neighbouring threads, which are so many and a power of two.
template <int kThreads>
__device__ inline float largest_of_neighbours(float x) {
#pragma unroll
  for (int apart = kThreads / 2; apart > 0; apart /= 2) x = larger(x, __shfl_xor_sync(0xffffffffu, x, apart));
  return x;
}

struct Square {
  std::int64_t row, column;
};

__device__ inline Square square_of(const QuantizeShape& s) {
  const std::int64_t across = s.tiles_across();
  return {blockIdx.x / across * kFp8Tile, blockIdx.x % across * kFp8Tile};
}

// A thread has one group in each of some rows; eight threads have a row.
template <bool kBlocks>
__global__ void __launch_bounds__(kBlock)
    quantize_straight_kernel(QuantizeShape s, const Bf16* input, std::uint8_t* values, float* scales) {
  __shared__ float shared[kWarp];
  const Square square = square_of(s);
  const std::int64_t column = square.column + threadIdx.x % kGroups * kGroup;
  const std::int64_t first = square.row + threadIdx.x / kGroups;
  Load x[kTurns][2] = {};
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const std::int64_t row = first + turn * kRowsAtOnce;
    if (row >= s.rows || column >= s.columns) continue;
    const Bf16* const from = input + row * s.input_stride() + column;
    x[turn][0] = *reinterpret_cast<const Load*>(from);
    x[turn][1] = *reinterpret_cast<const Load*>(from + kHalf);
  }
  float largest[kTurns] = {};
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
#pragma unroll
    for (int j = 0; j < kGroup; ++j)
      largest[turn] = larger(largest[turn], magnitude_of(x[turn][j / kHalf].value[j % kHalf]));
    if (kBlocks && turn > 0) largest[0] = larger(largest[0], largest[turn]);
    if (!kBlocks) largest[turn] = largest_of_neighbours<kGroups>(largest[turn]);
  }
  if (kBlocks) {
    float all[1] = {largest[0]};
    block_combine(all, 0.0f, larger, shared);
    if (threadIdx.x == 0) scales[s.scale_at(square.row, square.column)] = scale_of(all[0]).scale;
    largest[0] = all[0];
  }
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const std::int64_t row = first + turn * kRowsAtOnce;
    if (row >= s.rows || column >= s.columns) continue;
    const TileScale scale = scale_of(largest[kBlocks ? 0 : turn]);
    if (!kBlocks && threadIdx.x % kGroups == 0) scales[s.scale_at(row, column)] = scale.scale;
    Store store;
#pragma unroll
    for (int j = 0; j < kGroup; ++j)
      store.value[j] = quantized(x[turn][j / kHalf].value[j % kHalf], scale).bits;
    *reinterpret_cast<Store*>(values + row * s.columns + column) = store;
  }
}

// The square in shared memory: first as it is stored, a line for each column of the result, then a row of
// bytes for each of its rows. What is added to either spreads what threads access at once over the banks.
constexpr int kLine = kFp8Tile + kHalf;
constexpr int kRow = kFp8Tile + kVectorBytes;
constexpr int kPairs = kFp8Tile / 2;          // of rows of the result, one for each thread of a part
constexpr int kParts = kBlock / kPairs;       // of its columns
constexpr int kOwn = kFp8Tile / kParts;       // columns of a part
constexpr int kLineLoads = kFp8Tile / kHalf;  // of a line

template <bool kBlocks>
__global__ void __launch_bounds__(kBlock)
    quantize_transposed_kernel(QuantizeShape s, const Bf16* input, std::uint8_t* values, float* scales) {
  alignas(kVectorBytes) __shared__ unsigned char memory[kFp8Tile * kLine * sizeof(Bf16)];
  __shared__ float shared[kParts][kFp8Tile];
  const Square square = square_of(s);
  auto* const lines = reinterpret_cast<Bf16*>(memory);
#pragma unroll
  for (int turn = 0; turn < kFp8Tile * kLineLoads / kBlock; ++turn) {
    const int i = turn * kBlock + static_cast<int>(threadIdx.x);
    const int line = i / kLineLoads, at = i % kLineLoads * kHalf;
    Load load = {};
    if (square.column + line < s.columns && square.row + at < s.rows)
      load =
          *reinterpret_cast<const Load*>(input + (square.column + line) * s.input_stride() + square.row + at);
    *reinterpret_cast<Load*>(lines + line * kLine + at) = load;
  }
  __syncthreads();

  // A thread has two rows of the result, in the columns of its part.
  const int row = static_cast<int>(threadIdx.x) % kPairs * 2, part = static_cast<int>(threadIdx.x) / kPairs;
  Pack<Bf16, 2> x[kOwn];
  float largest[2] = {};
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    x[j] = *reinterpret_cast<const Pack<Bf16, 2>*>(lines + (part * kOwn + j) * kLine + row);
    for (int k = 0; k < 2; ++k) largest[k] = larger(largest[k], magnitude_of(x[j].value[k]));
  }
  if (kBlocks) {
    float all[1] = {larger(largest[0], largest[1])};
    block_combine(all, 0.0f, larger, &shared[0][0]);
    largest[0] = largest[1] = all[0];
    if (threadIdx.x == 0) scales[s.scale_at(square.row, square.column)] = scale_of(all[0]).scale;
  } else {
    for (int k = 0; k < 2; ++k) shared[part][row + k] = largest[k];
    __syncthreads();
    Pack<float, 2> pair;
    for (int k = 0; k < 2; ++k) {
      for (int other = 0; other < kParts; ++other) largest[k] = larger(largest[k], shared[other][row + k]);
      pair.value[k] = scale_of(largest[k]).scale;
    }
    if (part == 0 && square.row + row < s.rows)
      *reinterpret_cast<Pack<float, 2>*>(scales + s.scale_at(square.row + row, square.column)) = pair;
  }
  // All threads have read their lines: the barriers above are behind that.
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const TileScale scale = scale_of(largest[k]);
#pragma unroll
    for (int group = 0; group < kOwn / kGroup; ++group) {
      Store store;
#pragma unroll
      for (int j = 0; j < kGroup; ++j) store.value[j] = quantized(x[group * kGroup + j].value[k], scale).bits;
      *reinterpret_cast<Store*>(memory + (row + k) * kRow + part * kOwn + group * kGroup) = store;
    }
  }
  __syncthreads();
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int from = turn * kRowsAtOnce + static_cast<int>(threadIdx.x) / kGroups;
    const int at = static_cast<int>(threadIdx.x) % kGroups * kGroup;
    if (square.row + from >= s.rows || square.column + at >= s.columns) continue;
    *reinterpret_cast<Store*>(values + (square.row + from) * s.columns + square.column + at) =
        *reinterpret_cast<const Store*>(memory + from * kRow + at);
  }
}

static_assert(kRow * kFp8Tile <= kLine * kFp8Tile * static_cast<int>(sizeof(Bf16)));

using Kernel = void (*)(QuantizeShape, const Bf16*, std::uint8_t*, float*);

Kernel kernel_of(const QuantizeShape& s) {
  const bool blocks = s.tiles == Fp8Tiles::blocks;
  if (s.transposed) return blocks ? quantize_transposed_kernel<true> : quantize_transposed_kernel<false>;
  return blocks ? quantize_straight_kernel<true> : quantize_straight_kernel<false>;
}

}  // namespace

void quantize(const ComputeContext& context, const QuantizeShape& s, const void* input, void* values,
              float* scales) {
  if (!is_aligned(kVectorBytes, {{input, 1}, {values, 1}, {scales, 1}}))
    throw UsageError("quantize: on CUDA input, values and scales begin at multiples of " +
                     std::to_string(kVectorBytes) + " bytes");
  const std::int64_t squares = ceil_div(s.rows, kFp8Tile) * s.tiles_across();
  start(context, "quantize", {dim3(static_cast<unsigned>(squares)), dim3(kBlock)}, kernel_of(s), s,
        static_cast<const Bf16*>(input), static_cast<std::uint8_t*>(values), scales);
}

}  // namespace tessera::kernels::cuda
