// softmax.h with a block for each row. Which thread adds which logits is as in cross_entropy.cu, so that with
// one rank the bits are the same.
#include "kernels/softmax.h"

#include "kernels/cuda/softmax.cuh"
#include "kernels/cuda/sweep.cuh"
#include "kernels/ops.h"

namespace tessera::kernels::cuda {
namespace {

// Logits that do not begin at a multiple of 16 bytes.
using Unaligned = Sharing<512, 1, 1>;

struct Rows {
  int count, columns, first, vocabulary;  // `count` columns are not padding; `first` is the first one's token
  std::int64_t rows, stride;
  int ranks;
  const std::int32_t* targets;
};

Rows rows_of(const SoftmaxShape& shape, const std::int32_t* targets) {
  return {.count = static_cast<int>(shape.counted_columns()),
          .columns = static_cast<int>(shape.columns),
          .first = static_cast<int>(shape.first_column),
          .vocabulary = static_cast<int>(shape.vocabulary),
          .rows = shape.rows,
          .stride = logits_stride(shape, DeviceType::cuda),
          .ranks = shape.ranks,
          .targets = targets};
}

template <class By>
__global__ void __launch_bounds__(By::kThreads)
    statistics_kernel(Rows a, const float* all_logits, SoftmaxStatistics* statistics) {
  __shared__ float shared[kWarp];
  const std::int64_t row = blockIdx.x;
  const float* const logits = all_logits + row * a.stride;
  const int target = a.targets[row];
  Softmax all;
  for (int tile = 0; tile * By::kTile < a.count; ++tile) {
    float x[By::kParts][By::kCount];
    if (!By::is_whole(tile, 0, a.count)) By::clear(x);
    By::for_parts(tile, 0, a.count, [&](int part, int i) { By::load_logits(logits, i, a.count, x[part]); });
    all.add(x);
  }
  all.combine(shared);
  if (threadIdx.x > 0) return;
  const int column = target - a.first;
  const float at_target = target >= 0 && column >= 0 && column < a.count ? logits[column] : 0.0f;
  statistics[row] = is_counted(target, a.vocabulary) ? SoftmaxStatistics{all.maximum, all.sum[0], at_target}
                                                     : SoftmaxStatistics{};
}

template <class By, class T>
__global__ void __launch_bounds__(By::kThreads)
    gradients_kernel(Rows a, const SoftmaxStatistics* statistics, StepScale scale, float* all_logits,
                     float* losses) {
  const std::int64_t row = blockIdx.x;
  float* const logits = all_logits + row * a.stride;
  const int target = a.targets[row];
  const SoftmaxStatistics all = combined(statistics, a.ranks, a.rows, row);
  if (threadIdx.x == 0) losses[row] = loss_of(all, target, a.vocabulary);
  By::template replace<T>(a.count, logits, 0, Outcome(all, target, a.vocabulary, a.first, scale.get()));
  if (a.count == a.columns) return;
  __syncthreads();  // gradients of padding may lie over logits, and vectors reached into it
  T* const gradients = reinterpret_cast<T*>(logits);
  for (int i = a.count + static_cast<int>(threadIdx.x); i < a.columns; i += By::kThreads)
    gradients[i] = from_float<T>(0.0f);
}

struct Losses : Body {
  Losses(const Rows& a, const SoftmaxStatistics* from, float* to) : rows(a), statistics(from), losses(to) {}
  Rows rows;
  const SoftmaxStatistics* statistics;
  float* losses;

  template <int kCount>
  __device__ void run(std::int64_t row) const {
    static_assert(kCount == 1);
    losses[row] =
        loss_of(combined(statistics, rows.ranks, rows.rows, row), rows.targets[row], rows.vocabulary);
  }
};

// One block: the losses of counted rows, by thread, then by warp, then all.
constexpr int kTotalThreads = 1024;
__global__ void __launch_bounds__(kTotalThreads)
    total_kernel(std::int64_t rows, const std::int32_t* targets, const float* losses, LossTotal* total) {
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

// Calls function(By{}) with how a block shares a row.
template <class Function>
void with_sharing(const Rows& rows, const float* logits, Function&& function) {
  if (!is_aligned(1, {{logits, kVectorBytes}}))
    function(Unaligned{});
  else if (is_short(rows.count))
    function(Short{});
  else
    function(Long{});
}

}  // namespace

void softmax_statistics(const ComputeContext& context, const SoftmaxShape& shape, const float* logits,
                        const std::int32_t* targets, SoftmaxStatistics* statistics) {
  if (shape.rows == 0) return;
  const Rows rows = rows_of(shape, targets);
  with_sharing(rows, logits, [&](auto by) {
    using By = decltype(by);
    start(context, "softmax_statistics", {static_cast<unsigned>(shape.rows), By::kThreads},
          statistics_kernel<By>, rows, logits, statistics);
  });
}

void softmax_gradients(const ComputeContext& context, const SoftmaxShape& shape, const SoftmaxGradients& a) {
  if (shape.rows == 0) return;
  const Rows rows = rows_of(shape, a.targets);
  with_sharing(rows, a.logits, [&](auto by) {
    using By = decltype(by);
    with_compute_type(shape.type, [&](auto t) {
      start(context, "softmax_gradients", {static_cast<unsigned>(shape.rows), By::kThreads},
            gradients_kernel<By, decltype(t)>, rows, a.statistics, StepScale{a.scale, a.scale_at}, a.logits,
            a.losses);
    });
  });
}

void softmax_losses(const ComputeContext& context, const SoftmaxShape& shape,
                    const SoftmaxStatistics* statistics, const std::int32_t* targets, float* losses) {
  run_sweep<1>(context, "softmax_losses", Losses(rows_of(shape, targets), statistics, losses), shape.rows,
               {});
}

void total_loss(const ComputeContext& context, std::int64_t rows, const std::int32_t* targets,
                const float* losses, LossTotal* total) {
  start(context, "total_loss", {1, kTotalThreads}, total_kernel, rows, targets, losses, total);
}

}  // namespace tessera::kernels::cuda
