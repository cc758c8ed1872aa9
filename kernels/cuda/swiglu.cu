#include "kernels/swiglu.h"

#include "kernels/check.h"
#include "kernels/cuda/sweep.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/exp_math.h"
#include "kernels/ops.h"

namespace tessera::kernels::cuda {
namespace {

template <class T>
struct Forward {
  std::int64_t hidden;
  const T* gate_up;
  T* output;

  struct Row {
    const T *gate, *up;
    T* output;

    template <int kCount>
    __device__ void run(std::int64_t i) const {
      float x[kCount], y[kCount];
      load(gate + i, x);
      load(up + i, y);
#pragma unroll
      for (int j = 0; j < kCount; ++j) x[j] = swiglu_element(x[j], y[j]);
      store(x, output + i);
    }
  };
  __device__ Row row(std::int64_t r) const {
    const T* gate = gate_up + r * 2 * hidden;
    return {gate, gate + hidden, output + r * hidden};
  }
};

template <class T>
struct Backward {
  std::int64_t hidden;
  const T* gate_up;
  const T* output_gradient;
  T* gate_up_gradient;

  struct Row {
    const T *gate, *up, *output_gradient;
    T *gate_gradient, *up_gradient;

    template <int kCount>
    __device__ void run(std::int64_t i) const {
      float x[kCount], y[kCount], gradient[kCount];
      load(gate + i, x);
      load(up + i, y);
      load(output_gradient + i, gradient);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const SwigluGradients both = swiglu_gradients(x[j], y[j], gradient[j]);
        x[j] = both.gate;
        y[j] = both.up;
      }
      store(x, gate_gradient + i);
      store(y, up_gradient + i);
    }
  };
  __device__ Row row(std::int64_t r) const {
    const T* gate = gate_up + r * 2 * hidden;
    T* gradient = gate_up_gradient + r * 2 * hidden;
    return {gate, gate + hidden, output_gradient + r * hidden, gradient, gradient + hidden};
  }
};

}  // namespace

void swiglu_forward(const ComputeContext& context, const SwigluShape& shape, const void* gate_up,
                    void* output) {
  check_compute_type(shape.type, "swiglu_forward");
  with_compute_type(shape.type, [&](auto t) {
    using T = decltype(t);
    constexpr int kWidth = width_of(sizeof(T));
    const Forward<T> body = {shape.hidden, static_cast<const T*>(gate_up), static_cast<T*>(output)};
    run_row_sweep<kWidth>(context, "swiglu_forward", body,
                          row_sweep_of(shape.rows, shape.hidden, kWidth,
                                       {{gate_up, sizeof(T)}, {output, sizeof(T)}}, {shape.hidden}));
  });
}

void swiglu_backward(const ComputeContext& context, const SwigluShape& shape, const void* gate_up,
                     const void* output_gradient, void* gate_up_gradient) {
  check_compute_type(shape.type, "swiglu_backward");
  with_compute_type(shape.type, [&](auto t) {
    using T = decltype(t);
    constexpr int kWidth = width_of(sizeof(T));
    const Backward<T> body = {shape.hidden, static_cast<const T*>(gate_up),
                              static_cast<const T*>(output_gradient), static_cast<T*>(gate_up_gradient)};
    run_row_sweep<kWidth>(
        context, "swiglu_backward", body,
        row_sweep_of(shape.rows, shape.hidden, kWidth,
                     {{gate_up, sizeof(T)}, {output_gradient, sizeof(T)}, {gate_up_gradient, sizeof(T)}},
                     {shape.hidden}));
  });
}

}  // namespace tessera::kernels::cuda
