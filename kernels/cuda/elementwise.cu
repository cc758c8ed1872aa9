#include "kernels/elementwise.h"

#include "kernels/casts.h"
#include "kernels/check.h"
#include "kernels/cuda/column_groups.cuh"
#include "kernels/cuda/sweep.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/exp_math.h"
#include "kernels/ops.h"

namespace tessera::kernels::cuda {
namespace {

// output[i] = Function{}(input[i])
template <class Function, class Input, class Output>
struct Unary : Body {
  Unary(const void* in, void* out)
      : input(static_cast<const Input*>(in)), output(static_cast<Output*>(out)) {}
  const Input* input;
  Output* output;

  template <int kCount>
  __device__ void run(std::int64_t i) const {
    float x[kCount];
    load(input + i, x);
#pragma unroll
    for (int j = 0; j < kCount; ++j) x[j] = Function{}(x[j]);
    store(x, output + i);
  }
};

// output[i] = Function{}(a[i], b[i])
template <class Function, class T>
struct Binary : Body {
  Binary(const void* first, const void* second, void* out)
      : a(static_cast<const T*>(first)), b(static_cast<const T*>(second)), output(static_cast<T*>(out)) {}
  const T *a, *b;
  T* output;

  template <int kCount>
  __device__ void run(std::int64_t i) const {
    float x[kCount], y[kCount];
    load(a + i, x);
    load(b + i, y);
#pragma unroll
    for (int j = 0; j < kCount; ++j) x[j] = Function{}(x[j], y[j]);
    store(x, output + i);
  }
};

template <class T>
struct Fill : Body {
  Fill(float filling, void* out) : value(filling), output(static_cast<T*>(out)) {}
  float value;
  T* output;

  template <int kCount>
  __device__ void run(std::int64_t i) const {
    float x[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) x[j] = value;
    store(x, output + i);
  }
};

struct Same {
  __device__ float operator()(float x) const { return x; }
};
struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Gelu {
  __device__ float operator()(float x) const { return gelu_element(x); }
};
struct GeluGradient {
  __device__ float operator()(float x, float gradient) const { return gradient * gelu_derivative(x); }
};

// What gelu_backward writes, for sums of its columns.
template <class T>
struct GeluGradients {
  static constexpr int kRowsAtOnce = 1;
  const T *input, *output_gradient;
  T* input_gradient;

  template <int kCount>
  __device__ void take(std::int64_t i, float (&x)[kCount]) const {
    float gradient[kCount];
    load(input + i, x);
    load(output_gradient + i, gradient);
#pragma unroll
    for (int j = 0; j < kCount; ++j) x[j] = GeluGradient{}(x[j], gradient[j]);
    T rounded[kCount];
    round_all<kCount>(x, rounded);
#pragma unroll
    for (int j = 0; j < kCount; ++j) x[j] = to_float(rounded[j]);
    store(x, input_gradient + i);
  }
};

template <class T>
constexpr int kWidthOf = width_of(sizeof(T));

template <class Function, class T>
void run_binary(const ComputeContext& context, const char* op, std::int64_t numel, const void* a,
                const void* b, void* output) {
  run_sweep<kWidthOf<T>>(context, op, Binary<Function, T>(a, b, output), numel,
                         {{a, sizeof(T)}, {b, sizeof(T)}, {output, sizeof(T)}});
}

// In place a narrower output overwrites what other threads have yet to read: one block goes through the
// tensor front to back, and writes no more than it has read.
template <class Input, class Output>
__global__ void __launch_bounds__(kBlock)
    cast_in_place_kernel(std::int64_t numel, const Input* input, Output* output) {
  for (std::int64_t first = 0; first < numel; first += kBlock) {
    const std::int64_t i = first + threadIdx.x;
    const float x = i < numel ? to_float(input[i]) : 0.0f;
    __syncthreads();
    if (i < numel) output[i] = from_float<Output>(x);
    __syncthreads();
  }
}

}  // namespace

void cast(const ComputeContext& context, std::int64_t numel, DType input_type, const void* input,
          DType output_type, void* output) {
  if (input_type == output_type) {
    if (input != output) cuda::copy_bytes(context, numel * bytes_of(input_type), input, output);
    return;
  }
  with_type(input_type, [&](auto from) {
    with_type(output_type, [&](auto to) {
      using Input = decltype(from);
      using Output = decltype(to);
      if constexpr (sizeof(Output) < sizeof(Input))
        if (input == output)
          return start(context, "cast", {1, kBlock}, cast_in_place_kernel<Input, Output>, numel,
                       static_cast<const Input*>(input), static_cast<Output*>(output));
      if constexpr (!std::is_same_v<Input, Output>)
        run_sweep<width_of(std::max(sizeof(Input), sizeof(Output)))>(
            context, "cast", Unary<Same, Input, Output>(input, output), numel,
            {{input, sizeof(Input)}, {output, sizeof(Output)}});
    });
  });
}

void fill(const ComputeContext& context, DType type, std::int64_t numel, float value, void* output) {
  with_type(type, [&](auto t) {
    using T = decltype(t);
    run_sweep<kWidthOf<T>>(context, "fill", Fill<T>(value, output), numel, {{output, sizeof(T)}});
  });
}

void copy_bytes(const ComputeContext& context, std::int64_t bytes, const void* input, void* output) {
  if (bytes <= 0) return;
  device::check_cuda(cudaMemcpyAsync(output, input, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice,
                                     stream_of(context)),
                     "copy_bytes: cudaMemcpyAsync");
}

void copy_rows(const ComputeContext& context, const CopyShape& shape, const void* input, void* output) {
  const auto size = [](std::int64_t bytes) { return static_cast<std::size_t>(bytes); };
  device::check_cuda(cudaMemcpy2DAsync(output, size(shape.output_stride), input, size(shape.input_stride),
                                       size(shape.row_bytes), size(shape.rows), cudaMemcpyDeviceToDevice,
                                       stream_of(context)),
                     "copy_rows: cudaMemcpy2DAsync");
}

void add(const ComputeContext& context, DType type, std::int64_t numel, const void* a, const void* b,
         void* output) {
  with_type(type, [&](auto t) { run_binary<Sum, decltype(t)>(context, "add", numel, a, b, output); });
}

void gelu_forward(const ComputeContext& context, DType type, std::int64_t numel, const void* input,
                  void* output) {
  check_compute_type(type, "gelu_forward");
  with_compute_type(type, [&](auto t) {
    using T = decltype(t);
    run_sweep<kWidthOf<T>>(context, "gelu_forward", Unary<Gelu, T, T>(input, output), numel,
                           {{input, sizeof(T)}, {output, sizeof(T)}});
  });
}

void gelu_backward(const ComputeContext& context, DType type, std::int64_t numel, const void* input,
                   const void* output_gradient, void* input_gradient) {
  check_compute_type(type, "gelu_backward");
  with_compute_type(type, [&](auto t) {
    run_binary<GeluGradient, decltype(t)>(context, "gelu_backward", numel, input, output_gradient,
                                          input_gradient);
  });
}

void gelu_backward_bias(const ComputeContext& context, const GeluBackwardBias& a) {
  with_compute_type(a.type, [&](auto t) {
    using T = decltype(t);
    const GeluGradients<T> gradients = {static_cast<const T*>(a.input),
                                        static_cast<const T*>(a.output_gradient),
                                        static_cast<T*>(a.input_gradient)};
    sum_columns<T>(context, "gelu_backward_bias", a.rows, a.columns, gradients,
                   {{a.input, sizeof(T)}, {a.output_gradient, sizeof(T)}, {a.input_gradient, sizeof(T)}},
                   a.type, a.beta, a.bias_gradient);
  });
}

}  // namespace tessera::kernels::cuda
