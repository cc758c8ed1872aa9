// Backward sorts the occurrences of all tokens by token and row; the first occurrence of a token then owns
// its table row and adds its gradients in row order, so that no two blocks write one row and no order varies.
#include "kernels/embedding.h"

#include <math_constants.h>

#include <string>

#include "kernels/check.h"
#include "kernels/cuda/sweep.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/ops.h"

namespace tessera::kernels::cuda {
namespace {

__device__ inline bool is_token(std::int32_t token, std::int64_t vocabulary) {
  return token >= 0 && token < vocabulary;
}

// Gives every kernel the number of the table's rows.
EmbeddingShape resolved(EmbeddingShape shape) {
  shape.table_rows = shape.table_rows_or_all();
  return shape;
}

// The table's row of a token; not one of [0, table_rows) where another rank's table has it.
__device__ inline std::int64_t table_row(const EmbeddingShape& shape, std::int32_t token) {
  return token - shape.first_token;
}
__device__ inline bool is_here(const EmbeddingShape& shape, std::int64_t table_row) {
  return table_row >= 0 && table_row < shape.table_rows;
}

// output row = token row + position row; NaN for a token outside the vocabulary, -0 for another rank's.
template <class T, class Output>
struct Forward {
  EmbeddingShape shape;
  const std::int32_t* tokens;
  const T *token_table, *position_table;
  Output* output;

  struct Row {
    const T *token, *position;
    float filling;  // where there is no token row
    Output* output;

    template <int kCount>
    __device__ void run(std::int64_t i) const {
      float x[kCount];
      if (token == nullptr) {
#pragma unroll
        for (int j = 0; j < kCount; ++j) x[j] = filling;
      } else {
        load(token + i, x);
      }
      if (position != nullptr) {
        float y[kCount];
        load(position + i, y);
#pragma unroll
        for (int j = 0; j < kCount; ++j) x[j] += y[j];
      }
      store(x, output + i);
    }
  };
  __device__ Row row(std::int64_t r) const {
    const std::int32_t token = tokens[r];
    const std::int64_t channels = shape.channels, own = table_row(shape, token);
    const bool exists = is_token(token, shape.vocabulary);
    return {exists && is_here(shape, own) ? token_table + own * channels : nullptr,
            position_table == nullptr ? nullptr : position_table + r % shape.sequence * channels,
            exists ? -0.0f : CUDART_NAN_F, output + r * channels};
  }
};

// A row of the batch under its token's row of the table. Sorted, the rows of a token follow each other in row
// order; those of tokens that the table does not have, and what fills up the power of two, come last.
using Occurrence = std::uint64_t;
constexpr Occurrence kNone = ~Occurrence{0};
__device__ inline std::uint32_t token_of(Occurrence occurrence) {
  return static_cast<std::uint32_t>(occurrence >> 32);
}

__global__ void __launch_bounds__(kBlock)
    occurrences_kernel(std::int64_t rows, std::int64_t padded, EmbeddingShape shape,
                       const std::int32_t* tokens, Occurrence* occurrences) {
  const std::int64_t stride = gridDim.x * static_cast<std::int64_t>(kBlock);
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kBlock) + threadIdx.x; i < padded; i += stride)
    occurrences[i] =
        i < rows && is_token(tokens[i], shape.vocabulary) && is_here(shape, table_row(shape, tokens[i]))
            ? static_cast<Occurrence>(table_row(shape, tokens[i])) << 32 | static_cast<Occurrence>(i)
            : kNone;
}

// Bitonic sort (Batcher 1968) of a power of two of keys: for every `run` = 2, 4, ..., numel and every `apart`
// = run / 2, ..., 1 each key is compared with the one `apart` places away. What stays within kSortTile keys
// is done in shared memory.
constexpr int kSortTile = 2048;
constexpr int kSortThreads = kSortTile / 2;

// Orders the keys at i and i + apart; ascending in even runs.
__device__ inline void order(Occurrence* keys, std::int64_t i, std::int64_t apart, bool ascending) {
  const Occurrence a = keys[i], b = keys[i + apart];
  if ((a > b) != ascending) return;
  keys[i] = b;
  keys[i + apart] = a;
}

// The comparisons of one (run, apart), over all keys.
__global__ void __launch_bounds__(kBlock)
    sort_step_kernel(std::int64_t numel, std::int64_t run, std::int64_t apart, Occurrence* keys) {
  const std::int64_t stride = gridDim.x * static_cast<std::int64_t>(kBlock);
  for (std::int64_t pair = blockIdx.x * static_cast<std::int64_t>(kBlock) + threadIdx.x; pair < numel / 2;
       pair += stride) {
    const std::int64_t i = pair / apart * 2 * apart + pair % apart;
    order(keys, i, apart, (i & run) == 0);
  }
}

// A tile's comparisons of the runs first_run to last_run, as far as they lie within the tile.
__global__ void __launch_bounds__(kSortThreads)
    sort_tile_kernel(int tile, std::int64_t first_run, std::int64_t last_run, Occurrence* keys) {
  __shared__ Occurrence shared[kSortTile];
  const std::int64_t begin = blockIdx.x * static_cast<std::int64_t>(tile);
  for (int i = threadIdx.x; i < tile; i += kSortThreads) shared[i] = keys[begin + i];
  for (std::int64_t run = first_run; run <= last_run; run *= 2)
    for (int apart = static_cast<int>(run / 2 < tile / 2 ? run / 2 : tile / 2); apart > 0; apart /= 2) {
      __syncthreads();
      for (int pair = threadIdx.x; pair < tile / 2; pair += kSortThreads) {
        const int i = pair / apart * 2 * apart + pair % apart;
        order(shared, i, apart, ((begin + i) & run) == 0);
      }
    }
  __syncthreads();
  for (int i = threadIdx.x; i < tile; i += kSortThreads) keys[begin + i] = shared[i];
}

void sort(const ComputeContext& context, std::int64_t numel, Occurrence* keys) {
  const std::int64_t tile = std::min<std::int64_t>(numel, kSortTile);
  const auto tiles = static_cast<unsigned>(numel / tile);
  constexpr const char* kOp = "embedding_backward: sort";
  const Launch by_tile = {tiles, kSortThreads}, by_pair = {blocks_of(numel / 2, kBlock), kBlock};
  start(context, kOp, by_tile, sort_tile_kernel, static_cast<int>(tile), 2, tile, keys);
  for (std::int64_t run = 2 * tile; run <= numel; run *= 2) {
    for (std::int64_t apart = run / 2; apart >= tile; apart /= 2)
      start(context, kOp, by_pair, sort_step_kernel, numel, run, apart, keys);
    start(context, kOp, by_tile, sort_tile_kernel, static_cast<int>(tile), run, run, keys);
  }
}

template <int kCount, class T>
__device__ inline void put_sum(float (&sum)[kCount], float beta, T* to) {
  if (beta != 0.0f) {
    float old[kCount];
    load(to, old);
#pragma unroll
    for (int j = 0; j < kCount; ++j) sum[j] = old[j] + sum[j];
  }
  store(sum, to);
}

constexpr int kAhead = 8;  // rows

// A row of the token table, owned by the place of its token's first occurrence.
template <class T>
struct TokenRows {
  std::int64_t rows, channels;
  const Occurrence* occurrences;
  const T* output_gradient;
  T* gradient;
  float beta;

  struct Row {
    const Occurrence *first, *end;  // all occurrences from this one on; null: not the first of its token
    std::int64_t channels;
    const T* output_gradient;
    T* gradient;
    float beta;

    template <int kCount>
    __device__ void run(std::int64_t i) const {
      if (first == nullptr) return;
      float sum[kCount] = {};
      const std::uint32_t token = token_of(*first);
      // A frequent token's rows are asked for some at a time.
      int count = kAhead;
      for (const Occurrence* next = first; count == kAhead; next += kAhead) {
        count = 0;
#pragma unroll
        for (int ahead = 0; ahead < kAhead; ++ahead)
          count += next + ahead < end && token_of(next[ahead]) == token ? 1 : 0;
        Pack<T, kCount> x[kAhead];
#pragma unroll
        for (int ahead = 0; ahead < kAhead; ++ahead)
          if (ahead < count)
            x[ahead] = *reinterpret_cast<const Pack<T, kCount>*>(
                output_gradient + static_cast<std::int64_t>(next[ahead] & 0xffffffffu) * channels + i);
#pragma unroll
        for (int ahead = 0; ahead < kAhead; ++ahead) {
          if (ahead >= count) break;
#pragma unroll
          for (int j = 0; j < kCount; ++j) sum[j] += to_float(x[ahead].value[j]);
        }
      }
      put_sum(sum, beta, gradient + i);
    }
  };
  __device__ Row row(std::int64_t r) const {
    const Occurrence own = occurrences[r];
    const bool owns = own != kNone && (r == 0 || token_of(occurrences[r - 1]) != token_of(own));
    return {owns ? occurrences + r : nullptr,
            occurrences + rows,
            channels,
            output_gradient,
            owns ? gradient + token_of(own) * channels : nullptr,
            beta};
  }
};

template <class T>
struct PositionRows {
  EmbeddingShape shape;
  const T* output_gradient;
  T* gradient;
  float beta;

  struct Row {
    std::int64_t items, item_numel;
    const T* output_gradient;
    T* gradient;
    float beta;

    template <int kCount>
    __device__ void run(std::int64_t i) const {
      float sum[kCount] = {};
#pragma unroll 4
      for (std::int64_t item = 0; item < items; ++item) {
        float x[kCount];
        load(output_gradient + item * item_numel + i, x);
#pragma unroll
        for (int j = 0; j < kCount; ++j) sum[j] += x[j];
      }
      put_sum(sum, beta, gradient + i);
    }
  };
  // Rows behind the sequence get no gradient.
  __device__ Row row(std::int64_t place) const {
    return {place < shape.sequence ? shape.batch : 0, shape.sequence * shape.channels,
            output_gradient + place * shape.channels, gradient + place * shape.channels, beta};
  }
};

template <class T, class Output>
void forward(const ComputeContext& context, const char* op, const EmbeddingShape& shape,
             const std::int32_t* tokens, const void* token_table, const void* position_table, void* output) {
  const Forward<T, Output> body = {.shape = resolved(shape),
                                   .tokens = tokens,
                                   .token_table = static_cast<const T*>(token_table),
                                   .position_table = static_cast<const T*>(position_table),
                                   .output = static_cast<Output*>(output)};
  constexpr int kWidth = width_of(sizeof(Output));  // no narrower than T
  run_row_sweep<kWidth>(
      context, op, body,
      row_sweep_of(shape.batch * shape.sequence, shape.channels, kWidth,
                   {{token_table, sizeof(T)}, {position_table, sizeof(T)}, {output, sizeof(Output)}}, {}));
}

template <class T>
RowSweep sweep_of_rows(const EmbeddingShape& shape, std::int64_t rows, const void* a, const void* b,
                       const void* c) {
  return row_sweep_of(rows, shape.channels, width_of(sizeof(T)),
                      {{a, sizeof(T)}, {b, sizeof(T)}, {c, sizeof(T)}}, {});
}

template <class T>
void token_gradient(const ComputeContext& context, const EmbeddingShape& shape, const EmbeddingBackward& a) {
  const std::int64_t rows = shape.batch * shape.sequence;
  const std::int64_t padded = next_power_of_two(rows);
  auto* occurrences = static_cast<Occurrence*>(context.workspace.data);
  if (a.token_beta == 0.0f)
    device::check_cuda(
        cudaMemsetAsync(a.token_gradient, 0,
                        static_cast<std::size_t>(shape.table_rows_or_all() * shape.channels) * sizeof(T),
                        stream_of(context)),
        "embedding_backward: cudaMemsetAsync");
  if (rows == 0) return;
  start(context, "embedding_backward", {blocks_of(padded, kBlock), kBlock}, occurrences_kernel, rows, padded,
        resolved(shape), a.tokens, occurrences);
  sort(context, padded, occurrences);
  const TokenRows<T> body = {.rows = rows,
                             .channels = shape.channels,
                             .occurrences = occurrences,
                             .output_gradient = static_cast<const T*>(a.output_gradient),
                             .gradient = static_cast<T*>(a.token_gradient),
                             .beta = a.token_beta};
  run_row_sweep<width_of(sizeof(T))>(
      context, "embedding_backward", body,
      sweep_of_rows<T>(shape, rows, a.output_gradient, a.token_gradient, nullptr));
}

template <class T>
void position_gradient(const ComputeContext& context, const EmbeddingShape& shape,
                       const EmbeddingBackward& a) {
  const PositionRows<T> body = {.shape = shape,
                                .output_gradient = static_cast<const T*>(a.output_gradient),
                                .gradient = static_cast<T*>(a.position_gradient),
                                .beta = a.position_beta};
  const std::int64_t rows = a.position_beta == 0.0f ? shape.positions : shape.sequence;  // the others stay
  run_row_sweep<width_of(sizeof(T))>(
      context, "embedding_backward", body,
      sweep_of_rows<T>(shape, rows, a.output_gradient, a.position_gradient, nullptr));
}

}  // namespace

void embedding_forward(const ComputeContext& context, const EmbeddingShape& shape, const std::int32_t* tokens,
                       const void* token_table, const void* position_table, void* output) {
  check_embedding(shape, "embedding_forward");
  check_pair(position_table != nullptr, shape.positions != 0,
             "embedding_forward: a position table and positions");
  check_whole_table(shape, position_table);
  with_compute_type(shape.type, [&](auto t) {
    using T = decltype(t);
    forward<T, T>(context, "embedding_forward", shape, tokens, token_table, position_table, output);
  });
}

void embedding_forward_partial(const ComputeContext& context, const EmbeddingShape& shape,
                               const std::int32_t* tokens, const void* token_table, float* output) {
  check_embedding(shape, "embedding_forward_partial");
  with_compute_type(shape.type, [&](auto t) {
    forward<decltype(t), float>(context, "embedding_forward_partial", shape, tokens, token_table, nullptr,
                                output);
  });
}

std::int64_t embedding_backward_workspace_bytes(const EmbeddingShape& shape, const Target& /*target*/) {
  return workspace_part_bytes(next_power_of_two(shape.batch * shape.sequence) *
                              static_cast<std::int64_t>(sizeof(Occurrence)));
}

void embedding_backward(const ComputeContext& context, const EmbeddingShape& shape,
                        const EmbeddingBackward& a) {
  check_embedding(shape, "embedding_backward");
  check_beta(a.token_beta, "embedding_backward");
  check_beta(a.position_beta, "embedding_backward");
  check_workspace(context, cuda::embedding_backward_workspace_bytes(shape, context.target()),
                  "embedding_backward");
  with_compute_type(shape.type, [&](auto t) {
    if (a.token_gradient != nullptr) token_gradient<decltype(t)>(context, shape, a);
    if (a.position_gradient != nullptr) position_gradient<decltype(t)>(context, shape, a);
  });
}

}  // namespace tessera::kernels::cuda
