// Logits of a chunk by the matmul op, then one kernel for maximum, sum, loss and, in place, gradient. Rows of
// logits are padded to kStride elements, so that each begins aligned and whole vectors stay within it. Long
// ones are kept in shared memory for the gradient, which would else come after they left the cache.
#include "kernels/cross_entropy.h"

#include <math_constants.h>

#include <string>

#include "kernels/check.h"
#include "kernels/cross_entropy_chunks.h"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/sweep.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/ops.h"
#include "tessera/shape.h"

namespace tessera::kernels::cuda {
namespace {

constexpr std::int64_t kStride = 64;
constexpr int kRowThreads = 512;
constexpr int kCount = 8;  // elements a thread takes at a time
constexpr std::int64_t kPartBytes = 256;
// Of a row. At once a GPU works on some 528 (H100), in its cache are 50 MB.
constexpr std::int64_t kMostCachedBytes = 48 << 10;

std::int64_t logits_stride(const CrossEntropyShape& shape) { return round_up(shape.vocabulary, kStride); }

std::int64_t logits_bytes(const CrossEntropyShape& shape) {
  return round_up(rows_per_chunk(shape, DeviceType::cuda) * logits_stride(shape) * 4, kPartBytes);
}

// 16-bit gradients lie in the first half of their row of logits.
std::int64_t gradient_stride(const CrossEntropyShape& shape) {
  return logits_stride(shape) * 4 / bytes_of(shape.type);
}

struct Rows {
  int vocabulary;
  std::int64_t stride;
  float* logits;
  const std::int32_t* targets;
  float* losses;
  bool with_gradient;
  float scale;
};

// Writes function(logit, index) over a row, from `kept`, where each thread put what it takes here. Else each
// tile is read by all threads before any of it is written: T is no wider than float, so that nothing is
// overwritten that is still to be read.
template <class T, bool kKept, class Function>
__device__ inline void replace_row(const Rows& a, float* logits, const float* kept, Function function) {
  T* gradient = reinterpret_cast<T*>(logits);
  for (int tile = 0; tile < a.vocabulary; tile += kRowThreads * kCount) {
    const int i = tile + threadIdx.x * kCount;
    float x[kCount];
    if (i < a.vocabulary) load((kKept ? kept : logits) + i, x);
    if (!kKept) __syncthreads();
    if (i < a.vocabulary) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) x[j] = function(x[j], i + j);
      store(x, gradient + i);
    }
  }
}

// To the sum of a thread's e^(logit - maximum), and its maximum, the first `count` of `x`.
__device__ inline void add_logits(float (&x)[kCount], int count, float& maximum, float& sum) {
  float top = maximum;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    if (j >= count) x[j] = -CUDART_INF_F;
    top = fmaxf(top, x[j]);
  }
  if (top > maximum) {
    sum *= __expf(maximum - top);
    maximum = top;
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) sum += __expf(x[j] - maximum);
}

// A block is a row. Bits do not depend on whether it is kept.
template <class T, bool kKept>
__global__ void __launch_bounds__(kRowThreads) cross_entropy_kernel(Rows a) {
  __shared__ float shared[kWarp];
  constexpr int kTiles = kKept ? 4 : 1;  // on their way at once: one block alone has to keep the memory busy
  float* const kept = dynamic_shared();
  const std::int64_t row = blockIdx.x;
  float* logits = a.logits + row * a.stride;
  const int target = a.targets[row];
  if (target < 0 || target >= a.vocabulary) {
    const float value = target == -1 ? 0.0f : CUDART_NAN_F;
    if (threadIdx.x == 0) a.losses[row] = value;
    if (a.with_gradient) replace_row<T, kKept>(a, logits, kept, [&](float, int) { return value; });
    return;
  }
  const float at_target = logits[target];
  float maximum = -CUDART_INF_F, sum[1] = {0.0f};
  constexpr int kStep = kRowThreads * kCount;
  for (int first = threadIdx.x * kCount; first < a.vocabulary; first += kTiles * kStep) {
    float x[kTiles][kCount] = {};
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      if (first + tile * kStep < a.vocabulary) load(logits + first + tile * kStep, x[tile]);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      if (const int i = first + tile * kStep; i < a.vocabulary) {
        if (kKept) store(x[tile], kept + i);
        add_logits(x[tile], a.vocabulary - i, maximum, sum[0]);
      }
  }
  float top[1] = {maximum};
  block_combine(
      top, -CUDART_INF_F, [](float x, float y) { return fmaxf(x, y); }, shared);
  if (maximum < top[0]) sum[0] *= __expf(maximum - top[0]);  // 0 where this thread had no logits
  block_sum(sum, shared);
  if (threadIdx.x == 0)
    a.losses[row] = static_cast<float>(log(static_cast<double>(sum[0])) + top[0] - at_target);
  if (!a.with_gradient) return;
  const float factor = a.scale / sum[0];
  const float target_gradient = a.scale * (__expf(at_target - top[0]) / sum[0] - 1.0f);
  replace_row<T, kKept>(a, logits, kept, [&](float logit, int i) {
    return i == target ? target_gradient : __expf(logit - top[0]) * factor;
  });
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
    const Rows rows = {.vocabulary = static_cast<int>(shape.vocabulary),
                       .stride = logits_stride(shape),
                       .logits = logits(),
                       .targets = targets + chunk.begin,
                       .losses = losses + chunk.begin,
                       .with_gradient = with_gradient,
                       .scale = scale};
    with_compute_type(shape.type, [&](auto t) {
      using T = decltype(t);
      const auto blocks = static_cast<unsigned>(chunk.rows);
      if (with_gradient && can_keep(cross_entropy_kernel<T, true>))
        start(context, "cross_entropy", {blocks, kRowThreads, static_cast<std::size_t>(row_bytes())},
              cross_entropy_kernel<T, true>, rows);
      else
        start(context, "cross_entropy", {blocks, kRowThreads}, cross_entropy_kernel<T, false>, rows);
    });
  }

  std::int64_t row_bytes() const { return round_up(shape.vocabulary, kCount) * 4; }
  // Where it is worth it, and a block on this GPU has so much shared memory.
  bool can_keep(void (*kernel)(Rows)) const {
    return row_bytes() > kMostCachedBytes && can_share(reinterpret_cast<const void*>(kernel), row_bytes());
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
