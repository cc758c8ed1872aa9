#include "kernels/swiglu.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/swiglu.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

HWY_INLINE V16 sigmoid16(V16 x) { return reciprocal16(add(set16(1.0f), exp16(neg(x)))); }

template <class T>
HWY_INLINE void forward_row_of(const T* gate, std::int64_t hidden, T* output) {
  const T* up = gate + hidden;
  for (std::int64_t i = 0; i < hidden; i += 16) {
    const V16 x = load_some(gate + i, hidden - i);
    store_some(mul(mul(x, sigmoid16(x)), load_some(up + i, hidden - i)), output + i, hidden - i);
  }
}

// With s = sigmoid(gate): silu = gate s, silu' = s (1 + gate (1 - s)).
template <class T>
HWY_INLINE void backward_row_of(const T* gate, std::int64_t hidden, const T* output_gradient,
                                T* gate_gradient) {
  for (std::int64_t i = 0; i < hidden; i += 16) {
    const std::int64_t count = hidden - i;
    const V16 x = load_some(gate + i, count);
    const V16 up = load_some(gate + hidden + i, count);
    const V16 gradient = load_some(output_gradient + i, count);
    const V16 s = sigmoid16(x);
    const V16 slope = mul(s, fma(x, sub(set16(1.0f), s), set16(1.0f)));
    store_some(mul(mul(gradient, up), slope), gate_gradient + i, count);
    store_some(mul(gradient, mul(x, s)), gate_gradient + hidden + i, count);
  }
}

void swiglu_forward_rows(const SwigluShape& shape, const void* gate_up, void* output, std::int64_t begin,
                         std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const void* gate = element(gate_up, shape.type, row * 2 * shape.hidden);
    void* out = element(output, shape.type, row * shape.hidden);
    if (shape.type == DType::fp32)
      forward_row_of(static_cast<const float*>(gate), shape.hidden, static_cast<float*>(out));
    else
      forward_row_of(static_cast<const Bf16*>(gate), shape.hidden, static_cast<Bf16*>(out));
  }
}

void swiglu_backward_rows(const SwigluShape& shape, const void* gate_up, const void* output_gradient,
                          void* gate_up_gradient, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const void* gate = element(gate_up, shape.type, row * 2 * shape.hidden);
    const void* dy = element(output_gradient, shape.type, row * shape.hidden);
    void* dx = element(gate_up_gradient, shape.type, row * 2 * shape.hidden);
    if (shape.type == DType::fp32)
      backward_row_of(static_cast<const float*>(gate), shape.hidden, static_cast<const float*>(dy),
                      static_cast<float*>(dx));
    else
      backward_row_of(static_cast<const Bf16*>(gate), shape.hidden, static_cast<const Bf16*>(dy),
                      static_cast<Bf16*>(dx));
  }
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels::cpu {

HWY_EXPORT(swiglu_forward_rows);
HWY_EXPORT(swiglu_backward_rows);

namespace {

// Rows that make up what an elementwise kernel gives one thread at least.
std::int64_t grain_rows(const SwigluShape& shape) {
  return std::max<std::int64_t>(1, kElementwiseGrain / std::max<std::int64_t>(1, 2 * shape.hidden));
}

}  // namespace

void swiglu_forward(const ComputeContext& context, const SwigluShape& shape, const void* gate_up,
                    void* output) {
  check_compute_type(shape.type, "swiglu_forward");
  parallel_ranges(context.threads, shape.rows, grain_rows(shape),
                  [&](std::int64_t begin, std::int64_t end, int) {
                    HWY_DYNAMIC_DISPATCH(swiglu_forward_rows)(shape, gate_up, output, begin, end);
                  });
}

void swiglu_backward(const ComputeContext& context, const SwigluShape& shape, const void* gate_up,
                     const void* output_gradient, void* gate_up_gradient) {
  check_compute_type(shape.type, "swiglu_backward");
  parallel_ranges(context.threads, shape.rows, grain_rows(shape),
                  [&](std::int64_t begin, std::int64_t end, int) {
                    HWY_DYNAMIC_DISPATCH(swiglu_backward_rows)
                    (shape, gate_up, output_gradient, gate_up_gradient, begin, end);
                  });
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
