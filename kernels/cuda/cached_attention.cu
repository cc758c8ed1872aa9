// A block of threads is one row of one query head over one block of places: its warps take places in turn,
// each with a running maximum (Dao et al. 2022), and are joined in their order. A second kernel joins blocks
// of places, as Flash-Decoding does (Dao et al. 2023).
#include "kernels/cached_attention.h"

#include <cmath>
#include <string>

#include "kernels/check.h"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/sweep.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/ops.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMostChannels = 128;
constexpr int kPer = kMostChannels / kWarp;  // channels of a lane: lane + kWarp · j

struct Cached {
  std::int64_t rows, capacity, position, block, blocks;
  int heads, kv_heads, channels;
  std::int64_t qkv_numel, keys_numel;
  float scale;
};

// A thread copies an element of a new row's keys or values.
template <class T>
__global__ void __launch_bounds__(kBlock)
    cached_put_kernel(Cached c, std::int64_t count, const T* qkv, T* cache) {
  const std::int64_t stride = gridDim.x * static_cast<std::int64_t>(kBlock);
  const std::int64_t of_row = std::int64_t{2} * c.kv_heads * c.channels;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kBlock) + threadIdx.x; i < count;
       i += stride) {
    const std::int64_t column = i % of_row, row = i / of_row % c.rows, item = i / (of_row * c.rows);
    const std::int64_t channel = column % c.channels, head = column / c.channels % c.kv_heads;
    const bool is_value = column >= of_row / 2;
    const std::int64_t place = ((item * c.kv_heads + head) * c.capacity + c.position + row) * c.channels;
    cache[(is_value ? c.keys_numel : 0) + place + channel] =
        qkv[(item * c.rows + row) * c.qkv_numel + std::int64_t{c.heads} * c.channels + column];
  }
}

// What a query keeps of a block of places: weighted values [channels], then maximum and sum.
__device__ inline float* kept_of(float* partial, std::int64_t block, std::int64_t queries,
                                 std::int64_t query) {
  return partial + (block * queries + query) * (kMostChannels + 2);
}

// A joined sum: values times `factor`, and more times `other`.
struct Running {
  float maximum = -INFINITY, sum = 0.0f;
  float values[kPer] = {};

  __device__ void join(float more_maximum, float more_sum, const float* more, int first, int stride) {
    if (more_sum == 0.0f) return;  // nothing was seen there
    const float top = fmaxf(maximum, more_maximum);
    const float factor = __expf(maximum - top), other = __expf(more_maximum - top);
    sum = sum * factor + more_sum * other;
#pragma unroll
    for (int j = 0; j < kPer; ++j) values[j] = values[j] * factor + more[first + stride * j] * other;
    maximum = top;
  }
};

template <class T>
__global__ void __launch_bounds__(kWarps* kWarp)
    cached_attention_kernel(Cached c, const T* qkv, const T* cache, float* partial) {
  __shared__ float shared[kWarps][kMostChannels + 2];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t query = blockIdx.x;  // [batch, rows, heads]
  const int head = static_cast<int>(query % c.heads);
  const std::int64_t row = query / c.heads % c.rows, item = query / c.heads / c.rows;
  const int shared_head = head / (c.heads / c.kv_heads);
  const T* const q = qkv + (item * c.rows + row) * c.qkv_numel + std::int64_t{head} * c.channels;
  const std::int64_t base = (item * c.kv_heads + shared_head) * c.capacity * c.channels;
  const T *const keys = cache + base, *const values = cache + c.keys_numel + base;
  float own[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const int channel = lane + kWarp * j;
    own[j] = channel < c.channels ? to_float(q[channel]) * c.scale : 0.0f;
  }
  Running running;
  const std::int64_t first = blockIdx.y * c.block;
  std::int64_t last = c.position + row + 1;
  if (first + c.block < last) last = first + c.block;
  for (std::int64_t key = first + warp; key < last; key += kWarps) {
    float score = 0.0f;
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const int channel = lane + kWarp * j;
      if (channel < c.channels) score = fmaf(own[j], to_float(keys[key * c.channels + channel]), score);
    }
    score = warp_combine(score, [](float a, float b) { return a + b; });
    float value[kPer];
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const int channel = lane + kWarp * j;
      value[j] = channel < c.channels ? to_float(values[key * c.channels + channel]) : 0.0f;
    }
    running.join(score, 1.0f, value, 0, 1);
  }
#pragma unroll
  for (int j = 0; j < kPer; ++j) shared[warp][lane + kWarp * j] = running.values[j];
  if (lane == 0) {
    shared[warp][kMostChannels] = running.maximum;
    shared[warp][kMostChannels + 1] = running.sum;
  }
  __syncthreads();
  if (warp > 0) return;
  for (int other = 1; other < kWarps; ++other)
    running.join(shared[other][kMostChannels], shared[other][kMostChannels + 1], shared[other], lane, kWarp);
  float* const kept = kept_of(partial, blockIdx.y, gridDim.x, query);
#pragma unroll
  for (int j = 0; j < kPer; ++j) kept[lane + kWarp * j] = running.values[j];
  if (lane == 0) {
    kept[kMostChannels] = running.maximum;
    kept[kMostChannels + 1] = running.sum;
  }
}

// A warp joins the blocks of one query.
template <class T>
__global__ void __launch_bounds__(kBlock)
    cached_join_kernel(Cached c, std::int64_t queries, float* partial, T* output) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t query = (blockIdx.x * static_cast<std::int64_t>(kBlock) + threadIdx.x) / kWarp;
  if (query >= queries) return;
  Running running;
  for (std::int64_t block = 0; block < c.blocks; ++block) {
    const float* const kept = kept_of(partial, block, queries, query);
    running.join(kept[kMostChannels], kept[kMostChannels + 1], kept, lane, kWarp);
  }
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const int channel = lane + kWarp * j;
    if (channel < c.channels)
      output[query * c.channels + channel] = from_float<T>(running.values[j] / running.sum);
  }
}

void check_channels(const CachedAttentionShape& shape) {
  if (shape.head_channels() > kMostChannels)
    throw UnsupportedError("cached attention: on CUDA a head has at most " + std::to_string(kMostChannels) +
                           " channels, not " + std::to_string(shape.head_channels()));
}

}  // namespace

std::int64_t cached_attention_workspace_bytes(const CachedAttentionShape& shape, const Target& /*target*/) {
  check_channels(shape);
  return workspace_part_bytes(shape.blocks() * shape.batch * shape.rows * shape.heads * (kMostChannels + 2) *
                              4);
}

void cached_attention_forward(const ComputeContext& context, const CachedAttentionShape& s, const void* qkv,
                              void* cache, void* output) {
  const char* op = "cached_attention_forward";
  check_channels(s);
  const std::int64_t queries = s.batch * s.rows * s.heads;
  if (queries == 0) return;
  const std::int64_t blocks = s.visible_blocks();
  const Cached c = {.rows = s.rows,
                    .capacity = s.capacity,
                    .position = s.position,
                    .block = s.block(),
                    .blocks = blocks,
                    .heads = static_cast<int>(s.heads),
                    .kv_heads = static_cast<int>(s.kv_heads_or_heads()),
                    .channels = static_cast<int>(s.head_channels()),
                    .qkv_numel = s.qkv_channels(),
                    .keys_numel = s.keys_numel(),
                    .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.head_channels())))};
  auto* const partial = static_cast<float*>(context.workspace.data);
  with_compute_type(s.type, [&](auto t) {
    using T = decltype(t);
    const std::int64_t count = s.batch * s.rows * 2 * c.kv_heads * c.channels;
    start(context, op, {blocks_of(count, kBlock), kBlock}, cached_put_kernel<T>, c, count,
          static_cast<const T*>(qkv), static_cast<T*>(cache));
    start(context, op, {dim3(static_cast<unsigned>(queries), static_cast<unsigned>(blocks)), kWarps * kWarp},
          cached_attention_kernel<T>, c, static_cast<const T*>(qkv), static_cast<const T*>(cache), partial);
    start(context, op, {static_cast<unsigned>(ceil_div(queries * kWarp, kBlock)), kBlock},
          cached_join_kernel<T>, c, queries, partial, static_cast<T*>(output));
  });
}

}  // namespace tessera::kernels::cuda
