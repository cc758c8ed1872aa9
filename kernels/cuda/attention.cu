// Attention where cuDNN does not take it (cudnn_attention.h): fp32 arithmetic on tiles of kTile queries by
// kTile keys in shared memory, with a running maximum (Dao et al. 2022). Backward is two kernels, one that
// owns tiles of queries and one that owns tiles of keys, so that every sum has one owner and a fixed order.
#include "kernels/attention.h"

#include <math_constants.h>

#include <string>

#include "kernels/check.h"
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/sweep.cuh"
#include "kernels/ops.h"

namespace tessera::kernels::cuda {
namespace {

// One step of the running softmax of a row: scores become weights; gives the factor of what was summed
// before.
__device__ inline float softmax_step(float (&scores)[kPer], float& maximum, float& sum) {
  float top = scores[0];
#pragma unroll
  for (int j = 1; j < kPer; ++j) top = fmaxf(top, scores[j]);
  top = fmaxf(maximum, row_combine(top, [](float a, float b) { return fmaxf(a, b); }));
  const float factor = __expf(maximum - top);
  maximum = top;
  float added = 0.0f;
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    scores[j] = __expf(scores[j] - top);
    added += scores[j];
  }
  sum = fmaf(sum, factor, row_combine(added, [](float a, float b) { return a + b; }));
  return factor;
}

// A block is a tile of queries of one head.
template <class T, int kChunks, bool kDrops>
__global__ void __launch_bounds__(kThreads)
    attention_forward_kernel(Heads h, const T* qkv, T* output, float* log_sum_exp) {
  if constexpr (kDrops) h.dropout = at_step(h.dropout);
  float* const shared = dynamic_shared();
  float* queries = shared;
  float* keys = queries + Tile<kChunks>::kNumel;  // and values
  float* weights = keys + Tile<kChunks>::kNumel;
  __shared__ KeptTile kept;
  const std::int64_t item = blockIdx.x / h.heads;
  const int head = static_cast<int>(blockIdx.x % h.heads);
  const Place place(h, item, head);
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
  const int tile = static_cast<int>(gridDim.y - 1 - blockIdx.y);  // the longest first
  const std::int64_t first = std::int64_t{tile} * kTile;
  load_tile<kChunks>(h, qkv + place.query, h.qkv_channels, first, h.scale, queries);
  Sums<kChunks> sums = {};
  float maximum[kPer], total[kPer] = {};
#pragma unroll
  for (int i = 0; i < kPer; ++i) maximum[i] = -CUDART_INF_F;
  for (int key_tile = 0; key_tile <= tile; ++key_tile) {
    const std::int64_t first_key = std::int64_t{key_tile} * kTile;
    __syncthreads();  // the last values are used up
    load_tile<kChunks>(h, qkv + place.key, h.qkv_channels, first_key, 1.0f, keys);
    draw_tile<kDrops>(h, item, head, first, first_key, kept);
    __syncthreads();
    float scores[kPer][kPer];
    dot_rows<kChunks>(queries, keys, scores);
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
#pragma unroll
      for (int j = 0; j < kPer; ++j)
        if (key_tile == tile && x + kSide * j > y + kSide * i) scores[i][j] = -CUDART_INF_F;
      const float factor = softmax_step(scores[i], maximum[i], total[i]);
#pragma unroll
      for (int c = 0; c < kChunks * 4; ++c) sums[i][c] *= factor;
    }
    drop<kDrops>(h, kept, scores);  // after the sums, which are of all
    put_weights(scores, weights);
    __syncthreads();  // the keys are used up, too
    load_tile<kChunks>(h, qkv + place.value, h.qkv_channels, first_key, 1.0f, keys);
    __syncthreads();
    add_weighted<kChunks, false>(weights, keys, sums);
  }
  float inverse[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    inverse[i] = 1.0f / total[i];
    const std::int64_t row = first + y + kSide * i;
    if (x == 0 && row < h.sequence)
      log_sum_exp[place.statistics + row] =
          static_cast<float>(maximum[i] + log(static_cast<double>(total[i])));
  }
  store_rows<kChunks>(h, sums, inverse, first, output + place.output, h.model_channels);
}

// delta [batch, heads, sequence] = output . output_gradient, over a head's channels. A warp is a row of a
// head.
template <class T>
__global__ void __launch_bounds__(kBlock) attention_delta_kernel(Heads h, std::int64_t count, const T* output,
                                                                 const T* output_gradient, float* delta) {
  const std::int64_t warp = (blockIdx.x * static_cast<std::int64_t>(kBlock) + threadIdx.x) / kWarp;
  if (warp >= count) return;
  const std::int64_t place = warp % h.sequence, head = warp / h.sequence;
  const std::int64_t first =
      (head / h.heads * h.sequence + place) * h.model_channels + head % h.heads * h.channels;
  float sum = 0.0f;
  for (int c = threadIdx.x % kWarp; c < h.channels; c += kWarp)
    sum = fmaf(to_float(output[first + c]), to_float(output_gradient[first + c]), sum);
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
  if (threadIdx.x % kWarp == 0) delta[warp] = sum;
}

template <class T>
struct Backward {
  const T *qkv, *output_gradient;
  const float *log_sum_exp, *delta;
  T* qkv_gradient;
};

// Statistics of a thread's queries; a query behind the end has weight exp(0 - infinity) = 0.
struct Statistics {
  float log_sum_exp[kPer], delta[kPer];

  __device__ Statistics(const Heads& h, const float* sums, const float* deltas, std::int64_t first) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const std::int64_t row = first + threadIdx.x / kSide + kSide * i;
      log_sum_exp[i] = row < h.sequence ? sums[row] : CUDART_INF_F;
      delta[i] = row < h.sequence ? deltas[row] : 0.0f;
    }
  }
};

// scores -> weights = exp(scores - log_sum_exp), 0 above the diagonal.
__device__ inline void make_weights(const Statistics& statistics, bool diagonal,
                                    float (&scores)[kPer][kPer]) {
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
#pragma unroll
  for (int i = 0; i < kPer; ++i)
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const bool visible = !diagonal || x + kSide * j <= y + kSide * i;
      scores[i][j] = visible ? __expf(scores[i][j] - statistics.log_sum_exp[i]) : 0.0f;
    }
}

// weights -> gradients of the scores = weights * (gradients of the weights - delta).
__device__ inline void make_score_gradients(const Statistics& statistics,
                                            const float (&gradients)[kPer][kPer],
                                            float (&weights)[kPer][kPer]) {
#pragma unroll
  for (int i = 0; i < kPer; ++i)
#pragma unroll
    for (int j = 0; j < kPer; ++j) weights[i][j] *= gradients[i][j] - statistics.delta[i];
}

// Blocks of backward that a multiprocessor has shared memory for; the compiler shares its registers out so.
template <int kChunks>
constexpr int kBackwardBlocks = kChunks == 1 ? 2 : 1;

// A block is a tile of queries of one head and owns their gradients.
template <class T, int kChunks, bool kDrops>
__global__ void __launch_bounds__(kThreads, kBackwardBlocks<kChunks>)
    attention_query_gradient_kernel(Heads h, Backward<T> a) {
  if constexpr (kDrops) h.dropout = at_step(h.dropout);
  float* const shared = dynamic_shared();
  constexpr int kNumel = Tile<kChunks>::kNumel;
  float *queries = shared, *gradients = queries + kNumel, *keys = gradients + kNumel, *values = keys + kNumel;
  float* weights = values + kNumel;
  __shared__ KeptTile kept;
  const std::int64_t item = blockIdx.x / h.heads;
  const int head = static_cast<int>(blockIdx.x % h.heads);
  const Place place(h, item, head);
  const int tile = static_cast<int>(gridDim.y - 1 - blockIdx.y);
  const std::int64_t first = std::int64_t{tile} * kTile;
  load_tile<kChunks>(h, a.qkv + place.query, h.qkv_channels, first, h.scale, queries);
  load_tile<kChunks>(h, a.output_gradient + place.output, h.model_channels, first, 1.0f, gradients);
  const Statistics statistics(h, a.log_sum_exp + place.statistics, a.delta + place.statistics, first);
  Sums<kChunks> sums = {};
  for (int key_tile = 0; key_tile <= tile; ++key_tile) {
    const std::int64_t first_key = std::int64_t{key_tile} * kTile;
    __syncthreads();
    load_tile<kChunks>(h, a.qkv + place.key, h.qkv_channels, first_key, 1.0f, keys);
    load_tile<kChunks>(h, a.qkv + place.value, h.qkv_channels, first_key, 1.0f, values);
    draw_tile<kDrops>(h, item, head, first, first_key, kept);
    __syncthreads();
    float scores[kPer][kPer], weight_gradients[kPer][kPer];
    dot_rows<kChunks>(queries, keys, scores);
    make_weights(statistics, key_tile == tile, scores);
    dot_rows<kChunks>(gradients, values, weight_gradients);
    drop<kDrops>(h, kept, weight_gradients);
    make_score_gradients(statistics, weight_gradients, scores);
    put_weights(scores, weights);
    __syncthreads();
    add_weighted<kChunks, false>(weights, keys, sums);
  }
  const float scale[kPer] = {h.scale, h.scale, h.scale, h.scale};
  store_rows<kChunks>(h, sums, scale, first, a.qkv_gradient + place.query, h.qkv_channels);
}

// A block is a tile of keys of one key and value head and owns their gradients, over all heads of the group.
template <class T, int kChunks, bool kDrops>
__global__ void __launch_bounds__(kThreads, kBackwardBlocks<kChunks>)
    attention_key_gradient_kernel(Heads h, Backward<T> a) {
  if constexpr (kDrops) h.dropout = at_step(h.dropout);
  float* const shared = dynamic_shared();
  constexpr int kNumel = Tile<kChunks>::kNumel;
  float *queries = shared, *gradients = queries + kNumel, *keys = gradients + kNumel, *values = keys + kNumel;
  float* weights = values + kNumel;
  __shared__ KeptTile kept;
  const int kv_heads = h.heads / h.group;
  const std::int64_t item = blockIdx.x / kv_heads;
  const int first_head = static_cast<int>(blockIdx.x % kv_heads) * h.group;
  const Place own(h, item, first_head);
  const int tile = static_cast<int>(blockIdx.y);
  const std::int64_t first = std::int64_t{tile} * kTile;
  load_tile<kChunks>(h, a.qkv + own.key, h.qkv_channels, first, 1.0f, keys);
  load_tile<kChunks>(h, a.qkv + own.value, h.qkv_channels, first, 1.0f, values);
  Sums<kChunks> key_sums = {}, value_sums = {};
  for (int head = first_head; head < first_head + h.group; ++head) {
    const Place place(h, item, head);
    for (int query_tile = tile; query_tile < static_cast<int>(gridDim.y); ++query_tile) {
      const std::int64_t first_query = std::int64_t{query_tile} * kTile;
      __syncthreads();
      load_tile<kChunks>(h, a.qkv + place.query, h.qkv_channels, first_query, h.scale, queries);
      load_tile<kChunks>(h, a.output_gradient + place.output, h.model_channels, first_query, 1.0f, gradients);
      const Statistics statistics(h, a.log_sum_exp + place.statistics, a.delta + place.statistics,
                                  first_query);
      draw_tile<kDrops>(h, item, head, first_query, first, kept);
      __syncthreads();
      float scores[kPer][kPer], weight_gradients[kPer][kPer];
      dot_rows<kChunks>(queries, keys, scores);
      make_weights(statistics, query_tile == tile, scores);
      put_kept_weights<kDrops>(h, kept, scores, weights);
      __syncthreads();
      add_weighted<kChunks, true>(weights, gradients, value_sums);
      dot_rows<kChunks>(gradients, values, weight_gradients);
      drop<kDrops>(h, kept, weight_gradients);
      make_score_gradients(statistics, weight_gradients, scores);
      __syncthreads();
      put_weights(scores, weights);
      __syncthreads();
      add_weighted<kChunks, true>(weights, queries, key_sums);  // q is scaled already
    }
  }
  const float scale[kPer] = {1.0f, 1.0f, 1.0f, 1.0f};
  store_rows<kChunks>(h, key_sums, scale, first, a.qkv_gradient + own.key, h.qkv_channels);
  store_rows<kChunks>(h, value_sums, scale, first, a.qkv_gradient + own.value, h.qkv_channels);
}

Heads heads_of(const AttentionShape& shape, std::initializer_list<const void*> tensors) {
  check_attention(shape);
  if (shape.head_channels() > kMostChannels)
    throw UnsupportedError("attention: on CUDA a head has at most " + std::to_string(kMostChannels) +
                           " channels, not " + std::to_string(shape.head_channels()));
  bool vectorized = shape.head_channels() % 4 == 0;
  for (const void* tensor : tensors)
    vectorized = vectorized && is_aligned(4, {{tensor, bytes_of(shape.type)}});
  return {.sequence = shape.sequence,
          .heads = static_cast<int>(shape.heads),
          .group = static_cast<int>(shape.heads / shape.kv_heads_or_heads()),
          .channels = static_cast<int>(shape.head_channels()),
          .qkv_channels = shape.qkv_channels(),
          .model_channels = shape.channels,
          .vectorized = vectorized,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_channels()))),
          .dropout = shape.dropout,
          .dropout_scale = shape.dropout.scale()};
}

// Launches `kernel` on tiles of the sequence, for `heads` heads of all items, with shared memory for `tiles`
// tiles of channels and one of weights.
template <int kChunks, class... Parameters, class... Arguments>
void launch(const ComputeContext& context, const char* op, const AttentionShape& shape, std::int64_t heads,
            int tiles, void (*kernel)(Parameters...), const Arguments&... arguments) {
  const int shared_bytes = (tiles * Tile<kChunks>::kNumel + kTile * kWeightStride) * 4;
  device::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
                     op);
  const dim3 grid(static_cast<unsigned>(shape.batch * heads),
                  static_cast<unsigned>(ceil_div(shape.sequence, kTile)));
  start(context, op, {grid, kThreads, static_cast<std::size_t>(shared_bytes)}, kernel, arguments...);
}

// Calls function(chunks, drops) with the constants of the kernel.
template <class Function>
void with_constants(const Heads& heads, Function&& function) {
  const auto with_chunks = [&](auto drops) {
    if (heads.channels <= kTile)
      function(std::integral_constant<int, 1>{}, drops);
    else
      function(std::integral_constant<int, 2>{}, drops);
  };
  if (heads.dropout.threshold > 0)
    with_chunks(std::true_type{});
  else
    with_chunks(std::false_type{});
}

// cuDNN reads whole vectors; all tensors of an arena begin at some.
bool are_vectors(std::initializer_list<const void*> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const void* tensor) {
    return is_aligned(width_of(1), {{tensor, 1}});
  });
}

// What backward keeps where it is the kernels of this file.
std::int64_t delta_bytes(const AttentionShape& shape) {
  return workspace_part_bytes(shape.batch * shape.heads * shape.sequence * 4);
}

}  // namespace

std::int64_t attention_forward_workspace_bytes(const AttentionShape& shape, const Target& target) {
  heads_of(shape, {});
  return cudnn_takes_forward(shape) ? cudnn_forward_workspace_bytes(shape, target) : 0;
}

void attention_forward(const ComputeContext& context, const AttentionShape& shape, const void* qkv,
                       void* output, float* log_sum_exp) {
  const Heads heads = heads_of(shape, {qkv, output});
  if (shape.batch < 1 || shape.sequence < 1) return;
  if (cudnn_takes_forward(shape) && are_vectors({qkv, output, log_sum_exp}))
    return cudnn_forward(context, shape, qkv, output, log_sum_exp);
  with_compute_type(shape.type, [&](auto t) {
    using T = decltype(t);
    with_constants(heads, [&](auto chunks, auto drops) {
      launch<chunks()>(context, "attention_forward", shape, shape.heads, 2,
                       attention_forward_kernel<T, chunks(), drops()>, heads, static_cast<const T*>(qkv),
                       static_cast<T*>(output), log_sum_exp);
    });
  });
}

std::int64_t attention_backward_workspace_bytes(const AttentionShape& shape, const Target& target) {
  heads_of(shape, {});
  return std::max(delta_bytes(shape),
                  cudnn_takes_backward(shape) ? cudnn_backward_workspace_bytes(shape, target) : 0);
}

void attention_backward(const ComputeContext& context, const AttentionShape& shape,
                        const AttentionBackward& a) {
  const char* op = "attention_backward";
  const Heads heads = heads_of(shape, {a.qkv, a.output_gradient});
  const std::int64_t statistics = shape.batch * shape.heads * shape.sequence;
  if (statistics == 0) return;
  if (cudnn_takes_backward(shape) &&
      are_vectors({a.qkv, a.output, a.log_sum_exp, a.output_gradient, a.qkv_gradient}))
    return cudnn_backward(context, shape, a);
  check_workspace(context, delta_bytes(shape), op);
  auto* delta = static_cast<float*>(context.workspace.data);
  with_compute_type(shape.type, [&](auto t) {
    using T = decltype(t);
    start(context, op, {static_cast<unsigned>(ceil_div(statistics, kBlock / kWarp)), kBlock},
          attention_delta_kernel<T>, heads, statistics, static_cast<const T*>(a.output),
          static_cast<const T*>(a.output_gradient), delta);
    const Backward<T> arguments = {.qkv = static_cast<const T*>(a.qkv),
                                   .output_gradient = static_cast<const T*>(a.output_gradient),
                                   .log_sum_exp = a.log_sum_exp,
                                   .delta = delta,
                                   .qkv_gradient = static_cast<T*>(a.qkv_gradient)};
    with_constants(heads, [&](auto chunks, auto drops) {
      launch<chunks()>(context, op, shape, shape.heads, 4,
                       attention_query_gradient_kernel<T, chunks(), drops()>, heads, arguments);
      launch<chunks()>(context, op, shape, shape.kv_heads_or_heads(), 4,
                       attention_key_gradient_kernel<T, chunks(), drops()>, heads, arguments);
    });
  });
}

}  // namespace tessera::kernels::cuda
