#include "kernels/softmax.h"

#include <cstring>
#include <limits>

#include "kernels/check.h"
#include "kernels/cpu/close_gaps.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops.h"
#include "kernels/softmax_math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/softmax.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/softmax-inl.h"
#include "kernels/cpu/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// `target`: a column; another rank's where it is not in [0, count).
SoftmaxStatistics statistics_of_row(const float* logits, std::int64_t count, std::int64_t target) {
  if (count == 0) return {-std::numeric_limits<float>::infinity(), 0.0f, 0.0f};
  const float maximum = max_of_row(logits, count);
  return {maximum, sum_exp_of_row(logits, count, maximum),
          target >= 0 && target < count ? logits[target] : 0.0f};
}

// Written over the logits from the row's start on; T is no wider than float, so nothing is overwritten before
// it is read.
template <class T>
HWY_INLINE void put_gradients_of(float* row, std::int64_t count, std::int64_t target,
                                 const SoftmaxStatistics& all, float scale) {
  T* gradient = reinterpret_cast<T*>(row);
  const bool has_target = target >= 0 && target < count;
  const float target_logit = has_target ? row[target] : 0.0f;
  const V16 maximum = set16(all.maximum), factor = set16(scale / all.sum);
  for (std::int64_t i = 0; i < count; i += 16)
    store_some(mul(exp16(sub(load_some(row + i, count - i), maximum)), factor), gradient + i, count - i);
  if (!has_target) return;
  const float at_target = exp_element(target_logit - all.maximum);
  gradient[target] = from_float<T>(scale * (at_target / all.sum - 1.0f));
}

void put_gradients(DType type, float* row, std::int64_t count, std::int64_t target,
                   const SoftmaxStatistics& all, float scale) {
  if (type == DType::fp32)
    put_gradients_of<float>(row, count, target, all, scale);
  else
    put_gradients_of<Bf16>(row, count, target, all, scale);
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels::cpu {

HWY_EXPORT(statistics_of_row);
HWY_EXPORT(put_gradients);

void softmax_statistics(const ComputeContext& context, const SoftmaxShape& shape, const float* logits,
                        const std::int32_t* targets, SoftmaxStatistics* statistics) {
  check_targets(shape.rows, shape.vocabulary, targets, "softmax_statistics");
  parallel_ranges(context.threads, shape.rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = begin; row < end; ++row)
      statistics[row] = targets[row] < 0 ? SoftmaxStatistics{}
                                         : HWY_DYNAMIC_DISPATCH(statistics_of_row)(
                                               logits + row * shape.columns, shape.counted_columns(),
                                               targets[row] - shape.first_column);
  });
}

void softmax_gradients(const ComputeContext& context, const SoftmaxShape& shape,
                       const SoftmaxGradients& arguments) {
  check_targets(shape.rows, shape.vocabulary, arguments.targets, "softmax_gradients");
  const std::int64_t count = shape.counted_columns();
  parallel_ranges(context.threads, shape.rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* const logits = arguments.logits + row * shape.columns;
      const std::int32_t target = arguments.targets[row];
      const std::int64_t given = target < 0 ? 0 : count;  // columns whose gradient is not 0
      if (given > 0) {
        const SoftmaxStatistics all = combined(arguments.statistics, shape.ranks, shape.rows, row);
        HWY_DYNAMIC_DISPATCH(put_gradients)
        (shape.type, logits, given, target - shape.first_column, all, arguments.scale);
      }
      std::memset(element(static_cast<void*>(logits), shape.type, given), 0,
                  static_cast<std::size_t>((shape.columns - given) * bytes_of(shape.type)));
    }
  });
  if (shape.type == DType::bf16)
    close_gaps(context.threads, shape.rows, shape.columns * bytes_of(shape.type), arguments.logits);
  cpu::softmax_losses(context, shape, arguments.statistics, arguments.targets, arguments.losses);
}

void softmax_losses(const ComputeContext& context, const SoftmaxShape& shape,
                    const SoftmaxStatistics* statistics, const std::int32_t* targets, float* losses) {
  check_targets(shape.rows, shape.vocabulary, targets, "softmax_losses");
  constexpr std::int64_t kGrain = 1024;
  parallel_ranges(context.threads, shape.rows, kGrain, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = begin; row < end; ++row)
      losses[row] =
          targets[row] < 0 ? 0.0f : softmax_loss(combined(statistics, shape.ranks, shape.rows, row));
  });
}

void total_loss(const ComputeContext& /*context*/, std::int64_t rows, const std::int32_t* targets,
                const float* losses, LossTotal* total) {
  *total = {};
  for (std::int64_t row = 0; row < rows; ++row) {
    if (targets[row] < 0) continue;
    total->sum += losses[row];
    ++total->counted;
  }
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
