#include "kernels/rms_norm.h"

#include <cmath>
#include <string>

#include "kernels/check.h"
#include "kernels/cpu/column_sum.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_groups.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rms_norm.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// The sum of squares of one row of x, or of sum = x + residual, which is written on the way.
template <class T>
HWY_INLINE float squares_of_row(const T* x, const T* residual, T* sum, std::int64_t count) {
  V16 squares = set16(0.0f);
  for (std::int64_t i = 0; i < count; i += 16) {
    if (residual != nullptr)
      store_some(add(load_some(x + i, count - i), load_some(residual + i, count - i)), sum + i, count - i);
    const V16 value = load_some((residual != nullptr ? sum : x) + i, count - i);
    squares = fma(value, value, squares);  // lanes past the end are 0
  }
  return sum_lanes(squares);
}

template <class T>
HWY_INLINE void forward_rows_of(const RmsNormShape& shape, const RmsNormForward& a, std::int64_t begin,
                                std::int64_t end) {
  const std::int64_t count = shape.channels;
  const T* gain = static_cast<const T*>(a.gain);
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(a.input) + row * count;
    const T* residual = a.residual == nullptr ? nullptr : static_cast<const T*>(a.residual) + row * count;
    T* sum = a.residual == nullptr ? nullptr : static_cast<T*>(a.sum) + row * count;
    const float mean_square = squares_of_row(x, residual, sum, count) / static_cast<float>(count);
    const float rstd = 1.0f / std::sqrt(mean_square + shape.epsilon);
    if (sum != nullptr) x = sum;
    T* output = static_cast<T*>(a.output) + row * count;
    for (std::int64_t i = 0; i < count; i += 16) {
      const V16 normalized = mul(load_some(x + i, count - i), set16(rstd));
      store_some(mul(normalized, load_some(gain + i, count - i)), output + i, count - i);
    }
    a.rstd[row] = rstd;
  }
}

// One row of backward. With g = output_gradient * gain and n the normalised input:
// input_gradient = rstd (g - n mean(g n)). Adds to this group's gain sums where they are wanted.
template <class T>
HWY_INLINE void backward_row(const RmsNormShape& shape, const RmsNormBackward& a, std::int64_t row,
                             float* gain_sum) {
  const std::int64_t count = shape.channels;
  const T* x = static_cast<const T*>(a.input) + row * count;
  const T* dy = static_cast<const T*>(a.output_gradient) + row * count;
  const T* gain = static_cast<const T*>(a.gain);
  const V16 rstd = set16(a.rstd[row]);
  if (a.input_gradient == nullptr) {
    for (std::int64_t i = 0; i < count; i += 16) {
      const V16 n = mul(load_some(x + i, count - i), rstd);
      store_some(fma(load_some(dy + i, count - i), n, load_some(gain_sum + i, count - i)), gain_sum + i,
                 count - i);
    }
    return;
  }
  V16 sum_gn = set16(0.0f);
  for (std::int64_t i = 0; i < count; i += 16) {
    const V16 n = mul(load_some(x + i, count - i), rstd);  // 0 in lanes past the end
    const V16 gradient = load_some(dy + i, count - i);
    sum_gn = fma(mul(gradient, load_some(gain + i, count - i)), n, sum_gn);
    if (gain_sum != nullptr)
      store_some(fma(gradient, n, load_some(gain_sum + i, count - i)), gain_sum + i, count - i);
  }
  const V16 minus_mean_gn = set16(-(sum_lanes(sum_gn) / static_cast<float>(count)));
  T* dx = static_cast<T*>(a.input_gradient) + row * count;
  const T* residual = static_cast<const T*>(a.residual_gradient);
  for (std::int64_t i = 0; i < count; i += 16) {
    const V16 n = mul(load_some(x + i, count - i), rstd);
    const V16 g = mul(load_some(dy + i, count - i), load_some(gain + i, count - i));
    V16 gradient = mul(rstd, fma(n, minus_mean_gn, g));
    if (residual != nullptr) gradient = add(load_some(residual + row * count + i, count - i), gradient);
    store_some(gradient, dx + i, count - i);
  }
}

void rms_norm_forward_rows(const RmsNormShape& shape, const RmsNormForward& arguments, std::int64_t begin,
                           std::int64_t end) {
  if (shape.type == DType::fp32)
    forward_rows_of<float>(shape, arguments, begin, end);
  else
    forward_rows_of<Bf16>(shape, arguments, begin, end);
}

void rms_norm_backward_rows(const RmsNormShape& shape, const RmsNormBackward& arguments, std::int64_t begin,
                            std::int64_t end, float* gain_sum) {
  for (std::int64_t row = begin; row < end; ++row) {
    if (shape.type == DType::fp32)
      backward_row<float>(shape, arguments, row, gain_sum);
    else
      backward_row<Bf16>(shape, arguments, row, gain_sum);
  }
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels::cpu {

HWY_EXPORT(rms_norm_forward_rows);
HWY_EXPORT(rms_norm_backward_rows);

void rms_norm_forward(const ComputeContext& context, const RmsNormShape& shape,
                      const RmsNormForward& arguments) {
  check_compute_type(shape.type, "rms_norm_forward");
  check_pair(arguments.residual != nullptr, arguments.sum != nullptr, "rms_norm_forward: residual and sum");
  parallel_ranges(context.threads, shape.rows, 8, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(rms_norm_forward_rows)(shape, arguments, begin, end);
  });
}

// Each row group has `channels` gain sums.
std::int64_t rms_norm_backward_workspace_bytes(const RmsNormShape& shape, const Target& /*target*/) {
  return workspace_part_bytes(row_groups(shape.rows) * shape.channels * 4);
}

void rms_norm_backward(const ComputeContext& context, const RmsNormShape& shape,
                       const RmsNormBackward& arguments) {
  check_compute_type(shape.type, "rms_norm_backward");
  check_beta(arguments.beta, "rms_norm_backward");
  const bool sums = arguments.gain_gradient != nullptr;
  if (arguments.input_gradient == nullptr && !sums) return;
  if (sums)
    check_workspace(context, cpu::rms_norm_backward_workspace_bytes(shape, context.target()),
                    "rms_norm_backward");
  auto* partial = static_cast<float*>(context.workspace.data);
  const std::int64_t groups = row_groups(shape.rows);
  parallel_ranges(context.threads, groups, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t group = begin; group < end; ++group) {
      float* gain_sum = sums ? partial + group * shape.channels : nullptr;
      if (sums) std::fill_n(gain_sum, shape.channels, 0.0f);
      const std::int64_t row = group * kRowsPerGroup;
      HWY_DYNAMIC_DISPATCH(rms_norm_backward_rows)
      (shape, arguments, row, std::min(row + kRowsPerGroup, shape.rows), gain_sum);
    }
  });
  if (sums)
    add_row_groups(context, groups, shape.channels, shape.channels, partial, arguments.beta, shape.type,
                   arguments.gain_gradient);
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
