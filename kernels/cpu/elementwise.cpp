#include "kernels/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/casts.h"
#include "kernels/check.h"
#include "kernels/cpu/column_sum.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_groups.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

constexpr float kSqrt2OverPi = 0.7978845608028654f;
constexpr float kCubic = 0.044715f;

// The tanh form of gelu equals x s with s = 1 / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3).
HWY_INLINE V16 gelu_gate(V16 x) {
  const V16 inner = fma(mul(x, x), set16(kCubic), set16(1.0f));
  const V16 minus_2u = mul(mul(x, set16(-2.0f * kSqrt2OverPi)), inner);
  return reciprocal16(add(set16(1.0f), exp16(minus_2u)));
}

// Its derivative is s + x s (1 - s) 2 u', u' = sqrt(2/pi) (1 + 3 0.044715 x^2).
// For large |x| s (1 - s) is 0 and u' may be infinite, so the product is taken with x held within +-20.
HWY_INLINE V16 gelu_derivative(V16 x) {
  const V16 s = gelu_gate(x);
  const V16 bounded = neg(max(neg(max(x, set16(-20.0f))), set16(-20.0f)));
  const V16 inner = fma(mul(bounded, bounded), set16(3.0f * kCubic), set16(1.0f));
  const V16 slope = mul(mul(bounded, set16(2.0f * kSqrt2OverPi)), inner);
  return fma(mul(s, sub(set16(1.0f), s)), slope, s);
}

template <class T>
HWY_INLINE void gelu_forward_of(const T* input, T* output, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 16) {
    const V16 x = load_some(input + i, count - i);
    store_some(mul(x, gelu_gate(x)), output + i, count - i);
  }
}

template <class T>
HWY_INLINE void gelu_backward_of(const T* input, const T* output_gradient, T* input_gradient,
                                 std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 16) {
    const V16 derivative = gelu_derivative(load_some(input + i, count - i));
    const V16 gradient = load_some(output_gradient + i, count - i);
    store_some(mul(gradient, derivative), input_gradient + i, count - i);
  }
}

// Columns [begin, end) of `rows` rows. sums [columns] = what is written, added in row order.
template <class T>
HWY_INLINE void gelu_backward_rows_of(const GeluBackwardBias& a, std::int64_t first, std::int64_t rows,
                                      std::int64_t begin, std::int64_t end, float* sums) {
  for (std::int64_t i = begin; i < end; i += 16) store_some(set16(0.0f), sums + i, end - i);
  for (std::int64_t row = first; row < first + rows; ++row) {
    const T* const input = static_cast<const T*>(a.input) + row * a.columns;
    const T* const output_gradient = static_cast<const T*>(a.output_gradient) + row * a.columns;
    T* const input_gradient = static_cast<T*>(a.input_gradient) + row * a.columns;
    for (std::int64_t i = begin; i < end; i += 16) {
      const std::int64_t count = end - i;
      const V16 derivative = gelu_derivative(load_some(input + i, count));
      store_some(mul(load_some(output_gradient + i, count), derivative), input_gradient + i, count);
      store_some(add(load_some(sums + i, count), load_some(input_gradient + i, count)), sums + i, count);
    }
  }
}

void gelu_backward_rows(const GeluBackwardBias& a, std::int64_t first, std::int64_t rows, std::int64_t begin,
                        std::int64_t end, float* sums) {
  if (a.type == DType::fp32)
    gelu_backward_rows_of<float>(a, first, rows, begin, end, sums);
  else
    gelu_backward_rows_of<Bf16>(a, first, rows, begin, end, sums);
}

template <class T>
HWY_INLINE void add_of(const T* a, const T* b, T* output, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 16)
    store_some(add(load_some(a + i, count - i), load_some(b + i, count - i)), output + i, count - i);
}

template <class From, class To>
HWY_INLINE void cast_of(const From* input, To* output, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 16)
    store_some(load_some(input + i, count - i), output + i, count - i);
}

void gelu_forward_range(DType type, const void* input, void* output, std::int64_t count) {
  if (type == DType::fp32)
    gelu_forward_of(static_cast<const float*>(input), static_cast<float*>(output), count);
  else
    gelu_forward_of(static_cast<const Bf16*>(input), static_cast<Bf16*>(output), count);
}

void gelu_backward_range(DType type, const void* input, const void* output_gradient, void* input_gradient,
                         std::int64_t count) {
  if (type == DType::fp32)
    gelu_backward_of(static_cast<const float*>(input), static_cast<const float*>(output_gradient),
                     static_cast<float*>(input_gradient), count);
  else
    gelu_backward_of(static_cast<const Bf16*>(input), static_cast<const Bf16*>(output_gradient),
                     static_cast<Bf16*>(input_gradient), count);
}

void add_range(DType type, const void* a, const void* b, void* output, std::int64_t count) {
  switch (type) {
    case DType::fp32:
      return add_of(static_cast<const float*>(a), static_cast<const float*>(b), static_cast<float*>(output),
                    count);
    case DType::bf16:
      return add_of(static_cast<const Bf16*>(a), static_cast<const Bf16*>(b), static_cast<Bf16*>(output),
                    count);
    case DType::fp16:
      return add_of(static_cast<const Fp16*>(a), static_cast<const Fp16*>(b), static_cast<Fp16*>(output),
                    count);
  }
}

template <class From>
HWY_INLINE void cast_from(const From* input, DType output_type, void* output, std::int64_t count) {
  switch (output_type) {
    case DType::fp32:
      return cast_of(input, static_cast<float*>(output), count);
    case DType::bf16:
      return cast_of(input, static_cast<Bf16*>(output), count);
    case DType::fp16:
      return cast_of(input, static_cast<Fp16*>(output), count);
  }
}

void cast_range(DType input_type, const void* input, DType output_type, void* output, std::int64_t count) {
  switch (input_type) {
    case DType::fp32:
      return cast_from(static_cast<const float*>(input), output_type, output, count);
    case DType::bf16:
      return cast_from(static_cast<const Bf16*>(input), output_type, output, count);
    case DType::fp16:
      return cast_from(static_cast<const Fp16*>(input), output_type, output, count);
  }
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels::cpu {

HWY_EXPORT(gelu_forward_range);
HWY_EXPORT(gelu_backward_range);
HWY_EXPORT(gelu_backward_rows);
HWY_EXPORT(add_range);
HWY_EXPORT(cast_range);

void gelu_forward(const ComputeContext& context, DType type, std::int64_t numel, const void* input,
                  void* output) {
  check_compute_type(type, "gelu_forward");
  parallel_ranges(context.threads, numel, kElementwiseGrain, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(gelu_forward_range)
    (type, element(input, type, begin), element(output, type, begin), end - begin);
  });
}

void gelu_backward(const ComputeContext& context, DType type, std::int64_t numel, const void* input,
                   const void* output_gradient, void* input_gradient) {
  check_compute_type(type, "gelu_backward");
  parallel_ranges(context.threads, numel, kElementwiseGrain, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(gelu_backward_range)
    (type, element(input, type, begin), element(output_gradient, type, begin),
     element(input_gradient, type, begin), end - begin);
  });
}

// A piece of work is a group of rows or, where there are too few of these for the threads, a part of its
// columns: rows that are read as a whole are fetched ahead.
void gelu_backward_bias(const ComputeContext& context, const GeluBackwardBias& a) {
  constexpr std::int64_t kColumns = 1024;
  auto* const partial = static_cast<float*>(context.workspace.data);
  const std::int64_t groups = row_groups(a.rows);
  const int threads = a.rows * a.columns < kElementwiseGrain ? 1 : context.threads;
  const std::int64_t columns = groups % threads == 0 ? std::max<std::int64_t>(a.columns, 1) : kColumns;
  const std::int64_t parts = (a.columns + columns - 1) / columns;
  parallel_ranges(threads, groups * parts, 1, [&](std::int64_t first, std::int64_t last, int) {
    for (std::int64_t piece = first; piece < last; ++piece) {
      const std::int64_t group = piece / parts, begin = piece % parts * columns;
      const std::int64_t row = group * kRowsPerGroup;
      HWY_DYNAMIC_DISPATCH(gelu_backward_rows)
      (a, row, std::min(kRowsPerGroup, a.rows - row), begin, std::min(begin + columns, a.columns),
       partial + group * a.columns);
    }
  });
  add_row_groups(context, groups, a.columns, a.columns, partial, a.beta, a.type, a.bias_gradient);
}

void add(const ComputeContext& context, DType type, std::int64_t numel, const void* a, const void* b,
         void* output) {
  parallel_ranges(context.threads, numel, kElementwiseGrain, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(add_range)
    (type, element(a, type, begin), element(b, type, begin), element(output, type, begin), end - begin);
  });
}

void cast(const ComputeContext& context, std::int64_t numel, DType input_type, const void* input,
          DType output_type, void* output) {
  if (input_type == output_type) {
    if (input != output) copy_bytes(context, numel * bytes_of(input_type), input, output);
    return;
  }
  // In place, a part of the range overwrites what another part has yet to read: stay on one thread.
  const int threads = input == output ? 1 : context.threads;
  parallel_ranges(threads, numel, kElementwiseGrain, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(cast_range)
    (input_type, element(input, input_type, begin), output_type, element(output, output_type, begin),
     end - begin);
  });
}

void fill(const ComputeContext& context, DType type, std::int64_t numel, float value, void* output) {
  parallel_ranges(context.threads, numel, kElementwiseGrain, [&](std::int64_t begin, std::int64_t end, int) {
    switch (type) {
      case DType::fp32:
        std::fill_n(static_cast<float*>(output) + begin, end - begin, value);
        break;
      case DType::bf16:
        std::fill_n(static_cast<Bf16*>(output) + begin, end - begin, from_float<Bf16>(value));
        break;
      case DType::fp16:
        std::fill_n(static_cast<Fp16*>(output) + begin, end - begin, from_float<Fp16>(value));
        break;
    }
  });
}

void copy_bytes(const ComputeContext& context, std::int64_t bytes, const void* input, void* output) {
  parallel_ranges(context.threads, bytes, 4 * kElementwiseGrain,
                  [&](std::int64_t begin, std::int64_t end, int) {
                    std::memcpy(static_cast<char*>(output) + begin, static_cast<const char*>(input) + begin,
                                static_cast<std::size_t>(end - begin));
                  });
}

void copy_rows(const ComputeContext& context, const CopyShape& shape, const void* input, void* output) {
  const std::int64_t grain = std::max<std::int64_t>(1, 4 * kElementwiseGrain / shape.row_bytes);
  parallel_ranges(context.threads, shape.rows, grain, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = begin; row < end; ++row)
      std::memcpy(static_cast<char*>(output) + row * shape.output_stride,
                  static_cast<const char*>(input) + row * shape.input_stride,
                  static_cast<std::size_t>(shape.row_bytes));
  });
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
