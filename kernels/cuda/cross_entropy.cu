// Logits of a chunk by the matmul op, then one kernel for maximum, sum, loss and, in place, gradient. Rows of
// logits are padded to kStride elements, so that each begins aligned and whole vectors stay within it. Of
// long ones the gradient would come after they left the cache: what a block can keep of them it keeps.
#include "kernels/cross_entropy.h"

#include <math_constants.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/check.h"
#include "kernels/cross_entropy_chunks.h"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/copy_async.cuh"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/sweep.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/ops.h"
#include "tessera/shape.h"

namespace tessera::kernels::cuda {
namespace {

constexpr std::int64_t kStride = 64;
constexpr std::int64_t kPartBytes = 256;
// Of a row, for short ones. At once a GPU works on some 528 (H100), in its cache are 50 MB.
constexpr std::int64_t kMostCachedBytes = 64 << 10;

constexpr float kNoLogit = -INFINITY;

std::int64_t logits_stride(const CrossEntropyShape& shape) { return round_up(shape.vocabulary, kStride); }

std::int64_t logits_bytes(const CrossEntropyShape& shape) {
  return round_up(rows_per_chunk(shape, DeviceType::cuda) * logits_stride(shape) * 4, kPartBytes);
}

// 16-bit gradients lie in the first half of their row of logits.
std::int64_t gradient_stride(const CrossEntropyShape& shape) {
  return logits_stride(shape) * 4 / bytes_of(shape.type);
}

struct Rows {
  std::int64_t count;
  int vocabulary;
  std::int64_t stride;
  float* logits;
  const std::int32_t* targets;
  float* losses;
  bool with_gradient;
  float scale;
};

// e^x in few instructions, of which the kernels are to take less time than the memory; below the smallest
// normal number it is 0.
__device__ inline float exp_of(float x) {
#ifdef __CUDA_ARCH__
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
  return power;
#else
  return std::exp(x);
#endif
}

// Of the logits of a row that a thread, then all of its block, have seen: the maximum and, in sum[0], the sum
// of e^(logit - maximum).
struct Softmax {
  float maximum = kNoLogit;
  float sum[1] = {0.0f};

  template <int kParts, int kCount>
  __device__ void add(const float (&x)[kParts][kCount]) {
    float top = maximum;
#pragma unroll
    for (int i = 0; i < kParts * kCount; ++i) top = fmaxf(top, x[i / kCount][i % kCount]);
    if (top > maximum) {
      sum[0] *= exp_of(maximum - top);
      maximum = top;
    }
    if (maximum == kNoLogit) return;  // none yet, which less itself would be no number
#pragma unroll
    for (int i = 0; i < kParts * kCount; ++i) sum[0] += exp_of(x[i / kCount][i % kCount] - maximum);
  }

  // `shared`: as in block_combine().
  __device__ void combine(float* shared) {
    float top[1] = {maximum};
    block_combine(
        top, kNoLogit, [](float x, float y) { return fmaxf(x, y); }, shared);
    if (maximum < top[0]) sum[0] *= exp_of(maximum - top[0]);  // 0 where this thread had no logits
    maximum = top[0];
    block_sum(sum, shared);
  }
};

// What becomes of a row: its loss, and of each logit the gradient. Targets of -1 count for nothing; of others
// that are none, nothing is a number.
class Outcome {
 public:
  __device__ static bool is_counted(const Rows& rows, int target) {
    return target >= 0 && target < rows.vocabulary;
  }

  __device__ static Outcome of(const Rows& rows, int target, float at_target, const Softmax& all) {
    Outcome outcome;
    outcome.target_ = target;
    outcome.is_counted_ = is_counted(rows, target);
    outcome.maximum_ = all.maximum;
    outcome.factor_ = rows.scale / all.sum[0];
    outcome.at_target_ = rows.scale * (exp_of(at_target - all.maximum) / all.sum[0] - 1.0f);
    return outcome;
  }

  __device__ float loss(float at_target, const Softmax& all) const {
    return is_counted_ ? static_cast<float>(log(static_cast<double>(all.sum[0])) + all.maximum - at_target)
                       : otherwise();
  }

  // In place of the logits from `i` on.
  template <int kCount>
  __device__ void differentiate(float (&x)[kCount], int i) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j) x[j] = is_counted_ ? exp_of(x[j] - maximum_) * factor_ : otherwise();
    if (!is_counted_ || target_ < i || target_ >= i + kCount) return;
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      if (i + j == target_) x[j] = at_target_;
  }

 private:
  __device__ float otherwise() const { return target_ == -1 ? 0.0f : CUDART_NAN_F; }

  int target_;
  bool is_counted_;
  float maximum_, factor_, at_target_;
};

// How the threads of a block share a row: by tiles, of each of which a thread has kParts vectors.
template <int kThreads_, int kParts_, int kCount_>
struct Sharing {
  static constexpr int kThreads = kThreads_, kParts = kParts_, kCount = kCount_;
  static constexpr int kTile = kThreads * kParts * kCount;

  // Whether all of a tile is in [begin, end).
  static __device__ bool is_whole(int tile, int begin, int end) {
    return tile * kTile >= begin && (tile + 1) * kTile <= end;
  }

  // Calls function(part, i) for the thread's vectors of a tile that begin at an i in [begin, end).
  template <class Function>
  static __device__ void for_parts(int tile, int begin, int end, Function&& function) {
    const auto place_of = [tile](int part) {
      return tile * kTile + (part * kThreads + static_cast<int>(threadIdx.x)) * kCount;
    };
    if (is_whole(tile, begin, end)) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) function(part, place_of(part));
    } else {
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        if (const int i = place_of(part); i >= begin && i < end) function(part, i);
    }
  }

  // Loads from `from`, a row; beyond its end is no logit.
  static __device__ void load_logits(const float* from, int i, int vocabulary, float (&x)[kCount]) {
    load(from + i, x);
    if (i + kCount <= vocabulary) return;
#pragma unroll
    for (int j = 1; j < kCount; ++j)
      if (i + j >= vocabulary) x[j] = kNoLogit;
  }

  static __device__ void clear(float (&x)[kParts][kCount]) {
#pragma unroll
    for (int i = 0; i < kParts * kCount; ++i) x[i / kCount][i % kCount] = kNoLogit;
  }

  // Gradients in place of the logits from `begin` on, which are read once more; of those before it nothing is
  // read any more. T is no wider than float: where a tile's gradients lie over logits from `begin` on, they
  // are written when all threads have read that tile and those before it.
  template <class T>
  static __device__ void replace(const Rows& a, float* logits, int begin, const Outcome& outcome) {
    for (int tile = begin / kTile; tile * kTile < a.vocabulary; ++tile) {
      float x[kParts][kCount];
      for_parts(tile, begin, a.vocabulary, [&](int part, int i) { load(logits + i, x[part]); });
      constexpr int kNarrower = 4 / static_cast<int>(sizeof(T));
      if (kNarrower > 1 && (tile + 1) * kTile > begin * kNarrower) __syncthreads();
      for_parts(tile, begin, a.vocabulary, [&](int part, int i) {
        outcome.differentiate(x[part], i);
        store(x[part], reinterpret_cast<T*>(logits) + i);
      });
    }
  }
};

// A block is a row.
using Short = Sharing<512, 1, 8>;
template <class T>
__global__ void __launch_bounds__(Short::kThreads) short_row_kernel(Rows a) {
  __shared__ float shared[kWarp];
  const std::int64_t row = blockIdx.x;
  float* const logits = a.logits + row * a.stride;
  const int target = a.targets[row];
  const float at_target = Outcome::is_counted(a, target) ? logits[target] : 0.0f;
  Softmax all;
  for (int tile = 0; tile * Short::kTile < a.vocabulary; ++tile)
    Short::for_parts(tile, 0, a.vocabulary, [&](int, int i) {
      float x[1][Short::kCount];
      Short::load_logits(logits, i, a.vocabulary, x[0]);
      all.add(x);
    });
  all.combine(shared);
  const Outcome outcome = Outcome::of(a, target, at_target, all);
  if (threadIdx.x == 0) a.losses[row] = outcome.loss(at_target, all);
  if (a.with_gradient) Short::replace<T>(a, logits, 0, outcome);
}

// A multiprocessor has one block, which goes from row to row. Of a row it keeps the first kept_count logits,
// and as it has done with some of them their place is for the next row's, so that the memory is never idle: a
// thread asks for what it will itself read. Bits do not depend on kept_count, a multiple of a warp's vectors.
using Long = Sharing<1024, 2, 4>;
constexpr int kKeptTiles = 8;  // 256 KiB, more than a block has of shared memory
template <class T>
__global__ void __launch_bounds__(Long::kThreads) long_rows_kernel(Rows a, int kept_count) {
  __shared__ float shared[kWarp];
  float* const kept = dynamic_shared();
  const int kept_end = kept_count < a.vocabulary ? kept_count : a.vocabulary;
  const auto fetch = [&](int tile, const float* logits) {  // null: there is nothing to fetch
    if (logits != nullptr)
      Long::for_parts(tile, 0, kept_end, [&](int, int i) { copy_async(kept + i, logits + i); });
    close_copies();
  };
  for (int tile = 0; tile < kKeptTiles; ++tile) fetch(tile, a.logits + blockIdx.x * a.stride);
  int target = a.targets[blockIdx.x];
  for (std::int64_t row = blockIdx.x; row < a.count; row += gridDim.x) {
    float* const logits = a.logits + row * a.stride;
    const bool is_last = row + gridDim.x >= a.count;
    const float* const next = is_last ? nullptr : logits + gridDim.x * a.stride;
    const int next_target = is_last ? -1 : a.targets[row + gridDim.x];
    const float at_target = Outcome::is_counted(a, target) ? logits[target] : 0.0f;
    Softmax all;
    for (int tile = 0; tile < kKeptTiles || tile * Long::kTile < a.vocabulary; ++tile) {
      // Whatever there is to fetch, behind each kept tile's group are those of the kept tiles before this
      // one.
      if (tile < kKeptTiles) wait_for_copies<kKeptTiles - 1>();
      if (tile * Long::kTile < a.vocabulary) {
        float x[Long::kParts][Long::kCount];
        if (Long::is_whole(tile, 0, kept_end)) {
          Long::for_parts(tile, 0, kept_end, [&](int part, int i) { load(kept + i, x[part]); });
        } else {
          Long::clear(x);
          Long::for_parts(tile, 0, kept_end,
                          [&](int part, int i) { Long::load_logits(kept, i, a.vocabulary, x[part]); });
          Long::for_parts(tile, kept_end, a.vocabulary,
                          [&](int part, int i) { Long::load_logits(logits, i, a.vocabulary, x[part]); });
        }
        all.add(x);
      }
      if (tile < kKeptTiles) fetch(tile, a.with_gradient ? nullptr : next);
    }
    all.combine(shared);
    const Outcome outcome = Outcome::of(a, target, at_target, all);
    if (threadIdx.x == 0) a.losses[row] = outcome.loss(at_target, all);
    target = next_target;
    if (!a.with_gradient) continue;
    // First what was read last, which may be in the cache yet.
    if (kept_end < a.vocabulary) Long::replace<T>(a, logits, kept_end, outcome);
    for (int tile = 0; tile < kKeptTiles; ++tile) {
      Long::for_parts(tile, 0, kept_end, [&](int, int i) {
        float x[Long::kCount];
        load(kept + i, x);
        outcome.differentiate(x, i);
        store(x, reinterpret_cast<T*>(logits) + i);
      });
      fetch(tile, next);
    }
  }
}

// One block: the losses of counted rows, by thread, then by warp, then all.
constexpr int kTotalThreads = 1024;
__global__ void __launch_bounds__(kTotalThreads) total_kernel(std::int64_t rows, const std::int32_t* targets,
                                                              const float* losses, CrossEntropyLoss* total) {
  __shared__ double sums[kTotalThreads];
  __shared__ std::int64_t counts[kTotalThreads];
  const int thread = threadIdx.x;
  double sum = 0.0;
  std::int64_t counted = 0;
  for (std::int64_t row = thread; row < rows; row += kTotalThreads) {
    if (targets[row] == -1) continue;
    sum += losses[row];
    ++counted;
  }
  sums[thread] = sum;
  counts[thread] = counted;
  for (int apart = kTotalThreads / 2; apart > 0; apart /= 2) {
    __syncthreads();
    if (thread >= apart) continue;
    sums[thread] += sums[thread + apart];
    counts[thread] += counts[thread + apart];
  }
  if (thread == 0) *total = {sums[0], counts[0]};
}

struct Head {
  const ComputeContext& context;
  const CrossEntropyShape& shape;
  const void* input;
  const void* weight;
  const std::int32_t* targets;
  float* losses;

  float* logits() const { return static_cast<float*>(context.workspace.data); }
  ComputeContext behind_logits() const {
    ComputeContext rest = context;
    rest.workspace = {.data = offset_bytes<char>(context.workspace.data, logits_bytes(shape)),
                      .bytes = context.workspace.bytes - logits_bytes(shape)};
    return rest;
  }
  const void* input_of(Chunk chunk) const { return element(input, shape.type, chunk.begin * shape.channels); }

  // Logits and losses of a chunk; with gradients, these replace the logits.
  void run(Chunk chunk, bool with_gradient, float scale) const {
    cuda::matmul(behind_logits(), logits_shape(shape, chunk.rows, logits_stride(shape)), input_of(chunk),
                 weight, nullptr, logits());
    const Rows rows = {.count = chunk.rows,
                       .vocabulary = static_cast<int>(shape.vocabulary),
                       .stride = logits_stride(shape),
                       .logits = logits(),
                       .targets = targets + chunk.begin,
                       .losses = losses + chunk.begin,
                       .with_gradient = with_gradient,
                       .scale = scale};
    with_compute_type(shape.type, [&](auto t) {
      using T = decltype(t);
      if (shape.vocabulary * 4 <= kMostCachedBytes)
        start(context, "cross_entropy", {static_cast<unsigned>(rows.count), Short::kThreads},
              short_row_kernel<T>, rows);
      else
        start_long_rows(long_rows_kernel<T>, rows);
    });
  }

  void start_long_rows(void (*kernel)(Rows, int), const Rows& rows) const {
    constexpr std::int64_t kWarpBytes = kWarp * Long::kCount * 4;
    const std::int64_t room = std::min<std::int64_t>(most_shared(reinterpret_cast<const void*>(kernel)),
                                                     kKeptTiles * Long::kTile * std::int64_t{4});
    const std::int64_t bytes =
        std::min(room, round_up(shape.vocabulary * 4, kWarpBytes)) / kWarpBytes * kWarpBytes;
    const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(rows.count, multiprocessors()));
    start(context, "cross_entropy", {blocks, Long::kThreads, static_cast<std::size_t>(bytes)}, kernel, rows,
          static_cast<int>(bytes / 4));
  }

  void add_up(CrossEntropyLoss* total) const {
    start(context, "cross_entropy", {1, kTotalThreads}, total_kernel, shape.rows, targets, losses, total);
  }
};

}  // namespace

std::int64_t cross_entropy_workspace_bytes(const CrossEntropyShape& shape, const Target& target) {
  std::int64_t scratch_bytes = 0;
  for_each_chunk(shape, DeviceType::cuda, [&](Chunk chunk) {
    const auto need = [&](const MatmulShape& product) {
      scratch_bytes = std::max(scratch_bytes, cuda::matmul_workspace_bytes(product, target));
    };
    need(logits_shape(shape, chunk.rows, logits_stride(shape)));
    need(input_gradient_shape(shape, chunk.rows, gradient_stride(shape)));
    need(weight_gradient_shape(shape, chunk.rows, 1.0f, gradient_stride(shape)));
  });
  return logits_bytes(shape) + scratch_bytes;
}

void cross_entropy_forward(const ComputeContext& context, const CrossEntropyShape& shape, const void* input,
                           const void* weight, const std::int32_t* targets, float* losses,
                           CrossEntropyLoss* total) {
  check_compute_type(shape.type, "cross_entropy_forward");
  check_workspace(context, cuda::cross_entropy_workspace_bytes(shape, context.target()),
                  "cross_entropy_forward");
  const Head head = {context, shape, input, weight, targets, losses};
  for_each_chunk(shape, DeviceType::cuda, [&](Chunk chunk) { head.run(chunk, false, 1.0f); });
  head.add_up(total);
}

void cross_entropy_forward_backward(const ComputeContext& context, const CrossEntropyShape& shape,
                                    const CrossEntropyForwardBackward& a) {
  const char* op = "cross_entropy_forward_backward";
  check_compute_type(shape.type, op);
  check_workspace(context, cuda::cross_entropy_workspace_bytes(shape, context.target()), op);
  check_beta(a.weight_beta, op);
  const Head head = {context, shape, a.input, a.weight, a.targets, a.losses};
  const ComputeContext products = head.behind_logits();
  float beta = a.weight_beta;
  for_each_chunk(shape, DeviceType::cuda, [&](Chunk chunk) {
    head.run(chunk, true, a.scale);
    if (a.weight_gradient != nullptr)  // first, since input_gradient may be input
      cuda::matmul(products, weight_gradient_shape(shape, chunk.rows, beta, gradient_stride(shape)),
                   head.logits(), head.input_of(chunk), nullptr, a.weight_gradient);
    cuda::matmul(products, input_gradient_shape(shape, chunk.rows, gradient_stride(shape)), head.logits(),
                 a.weight, nullptr, element(a.input_gradient, shape.type, chunk.begin * shape.channels));
    beta = 1.0f;
  });
  head.add_up(a.total);
}

}  // namespace tessera::kernels::cuda
