#include "kernels/layer_norm.h"

#include <cmath>
#include <string>

#include "kernels/check.h"
#include "kernels/cpu/column_sum.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_groups.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/layer_norm.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

template <class T>
HWY_INLINE void add_row(const T* a, const T* b, T* sum, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 16)
    store_some(add(load_some(a + i, count - i), load_some(b + i, count - i)), sum + i, count - i);
}

template <class T>
HWY_INLINE float mean_of_row(const T* x, std::int64_t count) {
  V16 sum = set16(0.0f);
  for (std::int64_t i = 0; i < count; i += 16) sum = add(sum, load_some(x + i, count - i));
  return sum_lanes(sum) / static_cast<float>(count);
}

template <class T>
HWY_INLINE float variance_of_row(const T* x, std::int64_t count, float mean) {
  const V16 center = set16(mean);
  V16 sum = set16(0.0f);
  for (std::int64_t i = 0; i < count; i += 16) {
    const V16 centered = fill_lanes_from(sub(load_some(x + i, count - i), center), count - i, 0.0f);
    sum = fma(centered, centered, sum);
  }
  return sum_lanes(sum) / static_cast<float>(count);
}

template <class T>
HWY_INLINE void forward_rows_of(const LayerNormShape& shape, const LayerNormForward& a, std::int64_t begin,
                                std::int64_t end) {
  const std::int64_t count = shape.channels;
  const T* gain = static_cast<const T*>(a.gain);
  const T* bias = static_cast<const T*>(a.bias);
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(a.input) + row * count;
    if (a.residual != nullptr) {
      T* sum = static_cast<T*>(a.sum) + row * count;
      add_row(x, static_cast<const T*>(a.residual) + row * count, sum, count);
      x = sum;
    }
    const float mean = mean_of_row(x, count);
    const float rstd = 1.0f / std::sqrt(variance_of_row(x, count, mean) + shape.epsilon);
    T* output = static_cast<T*>(a.output) + row * count;
    for (std::int64_t i = 0; i < count; i += 16) {
      const V16 normalized = mul(sub(load_some(x + i, count - i), set16(mean)), set16(rstd));
      const V16 y = fma(normalized, load_some(gain + i, count - i), load_some(bias + i, count - i));
      store_some(y, output + i, count - i);
    }
    a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

// One row of backward. With g = output_gradient * gain and n the normalised input:
// input_gradient = rstd (g - mean(g) - n mean(g n)). Adds to this group's gain and bias sums where they are
// wanted.
template <class T>
HWY_INLINE void backward_row(const LayerNormShape& shape, const LayerNormBackward& a, std::int64_t row,
                             float* gain_sum, float* bias_sum) {
  const std::int64_t count = shape.channels;
  const T* x = static_cast<const T*>(a.input) + row * count;
  const T* dy = static_cast<const T*>(a.output_gradient) + row * count;
  const T* gain = static_cast<const T*>(a.gain);
  const V16 mean = set16(a.mean[row]);
  const V16 rstd = set16(a.rstd[row]);
  if (a.input_gradient == nullptr) {
    for (std::int64_t i = 0; i < count; i += 16) {
      const V16 n = mul(sub(load_some(x + i, count - i), mean), rstd);
      const V16 gradient = load_some(dy + i, count - i);
      store_some(fma(gradient, n, load_some(gain_sum + i, count - i)), gain_sum + i, count - i);
      store_some(add(gradient, load_some(bias_sum + i, count - i)), bias_sum + i, count - i);
    }
    return;
  }
  V16 sum_g = set16(0.0f);
  V16 sum_gn = set16(0.0f);
  for (std::int64_t i = 0; i < count; i += 16) {
    // Lanes past the end have dy 0 and n finite, so they add nothing.
    const V16 n = mul(sub(load_some(x + i, count - i), mean), rstd);
    const V16 gradient = load_some(dy + i, count - i);
    const V16 g = mul(gradient, load_some(gain + i, count - i));
    sum_g = add(sum_g, g);
    sum_gn = add(sum_gn, fill_lanes_from(mul(g, n), count - i, 0.0f));
    if (gain_sum != nullptr) {
      store_some(fma(gradient, n, load_some(gain_sum + i, count - i)), gain_sum + i, count - i);
      store_some(add(gradient, load_some(bias_sum + i, count - i)), bias_sum + i, count - i);
    }
  }
  const V16 mean_g = set16(sum_lanes(sum_g) / static_cast<float>(count));
  const V16 minus_mean_gn = set16(-(sum_lanes(sum_gn) / static_cast<float>(count)));
  T* dx = static_cast<T*>(a.input_gradient) + row * count;
  const T* residual = static_cast<const T*>(a.residual_gradient);
  for (std::int64_t i = 0; i < count; i += 16) {
    const V16 n = mul(sub(load_some(x + i, count - i), mean), rstd);
    const V16 g = mul(load_some(dy + i, count - i), load_some(gain + i, count - i));
    V16 gradient = mul(rstd, fma(n, minus_mean_gn, sub(g, mean_g)));
    if (residual != nullptr) gradient = add(load_some(residual + row * count + i, count - i), gradient);
    store_some(gradient, dx + i, count - i);
  }
}

void layer_norm_forward_rows(const LayerNormShape& shape, const LayerNormForward& arguments,
                             std::int64_t begin, std::int64_t end) {
  if (shape.type == DType::fp32)
    forward_rows_of<float>(shape, arguments, begin, end);
  else
    forward_rows_of<Bf16>(shape, arguments, begin, end);
}

void layer_norm_backward_rows(const LayerNormShape& shape, const LayerNormBackward& arguments,
                              std::int64_t begin, std::int64_t end, float* gain_sum, float* bias_sum) {
  for (std::int64_t row = begin; row < end; ++row) {
    if (shape.type == DType::fp32)
      backward_row<float>(shape, arguments, row, gain_sum, bias_sum);
    else
      backward_row<Bf16>(shape, arguments, row, gain_sum, bias_sum);
  }
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels::cpu {

HWY_EXPORT(layer_norm_forward_rows);
HWY_EXPORT(layer_norm_backward_rows);

void layer_norm_forward(const ComputeContext& context, const LayerNormShape& shape,
                        const LayerNormForward& arguments) {
  check_compute_type(shape.type, "layer_norm_forward");
  check_pair(arguments.residual != nullptr, arguments.sum != nullptr, "layer_norm_forward: residual and sum");
  parallel_ranges(context.threads, shape.rows, 8, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(layer_norm_forward_rows)(shape, arguments, begin, end);
  });
}

// Each row group has `channels` gain sums, then `channels` bias sums.
std::int64_t layer_norm_backward_workspace_bytes(const LayerNormShape& shape, const Target& /*target*/) {
  return workspace_part_bytes(row_groups(shape.rows) * shape.channels * 2 * 4);
}

void layer_norm_backward(const ComputeContext& context, const LayerNormShape& shape,
                         const LayerNormBackward& arguments) {
  check_compute_type(shape.type, "layer_norm_backward");
  check_beta(arguments.beta, "layer_norm_backward");
  const bool sums = arguments.gain_gradient != nullptr;
  check_pair(sums, arguments.bias_gradient != nullptr,
             "layer_norm_backward: gain_gradient and bias_gradient");
  if (arguments.input_gradient == nullptr && !sums) return;
  if (sums)
    check_workspace(context, cpu::layer_norm_backward_workspace_bytes(shape, context.target()),
                    "layer_norm_backward");
  auto* partial = static_cast<float*>(context.workspace.data);
  const std::int64_t stride = 2 * shape.channels;
  const std::int64_t groups = row_groups(shape.rows);
  parallel_ranges(context.threads, groups, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t group = begin; group < end; ++group) {
      float* gain_sum = sums ? partial + group * stride : nullptr;
      float* bias_sum = sums ? gain_sum + shape.channels : nullptr;
      if (sums) std::fill_n(gain_sum, stride, 0.0f);
      const std::int64_t row = group * kRowsPerGroup;
      HWY_DYNAMIC_DISPATCH(layer_norm_backward_rows)
      (shape, arguments, row, std::min(row + kRowsPerGroup, shape.rows), gain_sum, bias_sum);
    }
  });
  if (!sums) return;
  add_row_groups(context, groups, shape.channels, stride, partial, arguments.beta, shape.type,
                 arguments.gain_gradient);
  add_row_groups(context, groups, shape.channels, stride, partial + shape.channels, arguments.beta,
                 shape.type, arguments.bias_gradient);
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
