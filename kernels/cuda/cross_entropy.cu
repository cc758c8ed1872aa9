// Logits of a chunk by the matmul op, then one kernel for maximum, sum, loss and, in place, gradient. Rows of
// logits are padded to kStride elements, so that each begins aligned and whole vectors stay within it. Of
// long ones the gradient would come after they left the cache: what a block can keep of them it keeps.
#include "kernels/cross_entropy.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cross_entropy_chunks.h"
#include "kernels/cuda/copy_async.cuh"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/softmax.cuh"
#include "kernels/cuda/sweep.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/ops.h"
#include "tessera/shape.h"

namespace tessera::kernels::cuda {
namespace {

constexpr std::int64_t kStride = 64;
constexpr std::int64_t kPartBytes = 256;

std::int64_t logits_stride(const CrossEntropyShape& shape) { return round_up(shape.vocabulary, kStride); }

std::int64_t logits_bytes(const CrossEntropyShape& shape) {
  return round_up(rows_per_chunk(shape, DeviceType::cuda) * logits_stride(shape) * 4, kPartBytes);
}

// 16-bit gradients lie in the first half of their row of logits.
std::int64_t gradient_stride(const CrossEntropyShape& shape) {
  return logits_stride(shape) * 4 / bytes_of(shape.type);
}

// How many rows were taken; it lies behind the logits.
using Counter = unsigned long long;
std::int64_t counter_bytes(const CrossEntropyShape& shape) {
  return is_short(shape.vocabulary) ? 0 : kPartBytes;
}

struct Rows {
  std::int64_t count;
  int vocabulary;
  std::int64_t stride;
  float* logits;
  const std::int32_t* targets;
  float* losses;
  bool with_gradient;
  StepScale scale;
  Counter* taken = nullptr;  // 0 when long rows begin
};

// A block is a row.
template <class T>
__global__ void __launch_bounds__(Short::kThreads) short_row_kernel(Rows a) {
  __shared__ float shared[kWarp];
  const std::int64_t row = blockIdx.x;
  float* const logits = a.logits + row * a.stride;
  const int target = a.targets[row];
  const float at_target = is_counted(target, a.vocabulary) ? logits[target] : 0.0f;
  Softmax all;
  for (int tile = 0; tile * Short::kTile < a.vocabulary; ++tile)
    Short::for_parts(tile, 0, a.vocabulary, [&](int, int i) {
      float x[1][Short::kCount];
      Short::load_logits(logits, i, a.vocabulary, x[0]);
      all.add(x);
    });
  all.combine(shared);
  const SoftmaxStatistics statistics = {all.maximum, all.sum[0], at_target};
  if (threadIdx.x == 0) a.losses[row] = loss_of(statistics, target, a.vocabulary);
  if (a.with_gradient)
    Short::replace<T>(a.vocabulary, logits, 0, Outcome(statistics, target, a.vocabulary, 0, a.scale.get()));
}

// A multiprocessor has one block, which takes row after row until there are none: where other kernels hold a
// multiprocessor, such as those that exchange gradients, the other blocks do its rows, and a block that comes
// late finds none. Of a row a block keeps the first kept_count logits, and as it has done with some of them
// their place is for the next row's, so that the memory is never idle: a thread asks for what it will itself
// read. Bits depend neither on who takes a row nor on kept_count, a multiple of a warp's vectors.
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
  const auto target_of = [&](std::int64_t row) { return row < a.count ? a.targets[row] : -1; };
  __shared__ std::int64_t rows[2];  // that were taken, by turns
  const bool takes = threadIdx.x == 0;
  if (takes) rows[0] = static_cast<std::int64_t>(atomicAdd(a.taken, Counter{1}));
  __syncthreads();
  std::int64_t row = rows[0];
  if (row >= a.count) return;
  for (int tile = 0; tile < kKeptTiles; ++tile) fetch(tile, a.logits + row * a.stride);
  int target = target_of(row);
  for (int turn = 1; row < a.count; turn = 1 - turn) {
    float* const logits = a.logits + row * a.stride;
    std::int64_t taken = 0;  // which is not waited for before it is passed on
    if (takes) taken = static_cast<std::int64_t>(atomicAdd(a.taken, Counter{1}));
    const float at_target = is_counted(target, a.vocabulary) ? logits[target] : 0.0f;
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
      if (tile < kKeptTiles) close_copies();
    }
    if (takes) rows[turn] = taken;
    all.combine(shared);  // with barriers, behind which all see the row that was taken
    const std::int64_t next_row = rows[turn];
    const float* const next = next_row < a.count ? a.logits + next_row * a.stride : nullptr;
    const SoftmaxStatistics statistics = {all.maximum, all.sum[0], at_target};
    const Outcome outcome(statistics, target, a.vocabulary, 0, a.scale.get());
    if (takes) a.losses[row] = loss_of(statistics, target, a.vocabulary);
    row = next_row;
    target = target_of(row);
    // First what was read last, which may be in the cache yet.
    if (a.with_gradient && kept_end < a.vocabulary) Long::replace<T>(a.vocabulary, logits, kept_end, outcome);
    for (int tile = 0; tile < kKeptTiles; ++tile) {
      if (a.with_gradient)
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

struct Head {
  const ComputeContext& context;
  const CrossEntropyShape& shape;
  const void* input;
  const void* weight;
  const std::int32_t* targets;
  float* losses;

  float* logits() const { return static_cast<float*>(context.workspace.data); }
  Counter* counter() const { return offset_bytes<Counter>(context.workspace.data, logits_bytes(shape)); }
  ComputeContext behind_logits() const {
    const std::int64_t own_bytes = logits_bytes(shape) + counter_bytes(shape);
    ComputeContext rest = context;
    rest.workspace = {.data = offset_bytes<char>(context.workspace.data, own_bytes),
                      .bytes = context.workspace.bytes - own_bytes};
    return rest;
  }
  const void* input_of(Chunk chunk) const { return element(input, shape.type, chunk.begin * shape.channels); }

  // Logits and losses of a chunk; with gradients, these replace the logits.
  void run(Chunk chunk, bool with_gradient, StepScale scale) const {
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
      if (is_short(shape.vocabulary))
        start(context, "cross_entropy", {static_cast<unsigned>(rows.count), Short::kThreads},
              short_row_kernel<T>, rows);
      else
        start_long_rows(long_rows_kernel<T>, rows);
    });
  }

  void start_long_rows(void (*kernel)(Rows, int), Rows rows) const {
    rows.taken = counter();
    device::check_cuda(cudaMemsetAsync(rows.taken, 0, sizeof(Counter), stream_of(context)),
                       "cross_entropy: cudaMemsetAsync");
    constexpr std::int64_t kWarpBytes = kWarp * Long::kCount * 4;
    const std::int64_t room = std::min<std::int64_t>(most_shared(reinterpret_cast<const void*>(kernel)),
                                                     kKeptTiles * Long::kTile * std::int64_t{4});
    const std::int64_t bytes =
        std::min(room, round_up(shape.vocabulary * 4, kWarpBytes)) / kWarpBytes * kWarpBytes;
    const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(rows.count, multiprocessors()));
    start(context, "cross_entropy", {blocks, Long::kThreads, static_cast<std::size_t>(bytes)}, kernel, rows,
          static_cast<int>(bytes / 4));
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
  return logits_bytes(shape) + counter_bytes(shape) + scratch_bytes;
}

void cross_entropy_forward(const ComputeContext& context, const CrossEntropyShape& shape, const void* input,
                           const void* weight, const std::int32_t* targets, float* losses,
                           CrossEntropyLoss* total) {
  check_compute_type(shape.type, "cross_entropy_forward");
  check_workspace(context, cuda::cross_entropy_workspace_bytes(shape, context.target()),
                  "cross_entropy_forward");
  const Head head = {context, shape, input, weight, targets, losses};
  for_each_chunk(shape, DeviceType::cuda, [&](Chunk chunk) { head.run(chunk, false, {}); });
  cuda::total_loss(context, shape.rows, targets, losses, total);
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
    head.run(chunk, true, {a.scale, a.scale_at});
    if (a.weight_gradient != nullptr)  // first, since input_gradient may be input
      cuda::matmul(products, weight_gradient_shape(shape, chunk.rows, beta, gradient_stride(shape)),
                   head.logits(), head.input_of(chunk), nullptr, a.weight_gradient);
    cuda::matmul(products, input_gradient_shape(shape, chunk.rows, gradient_stride(shape)), head.logits(),
                 a.weight, nullptr, element(a.input_gradient, shape.type, chunk.begin * shape.channels));
    beta = 1.0f;
  });
  cuda::total_loss(context, shape.rows, a.targets, a.losses, a.total);
}

}  // namespace tessera::kernels::cuda
