// Layer norm and its relative without a mean and a bias, rms norm. A block works on one row at a time; each
// thread keeps to its columns, so that in-place calls need no care. Where those are one vector (kOnce) it
// keeps them in registers from the first pass over the row to the last; the bits are the same.
#include <algorithm>
#include <string>

#include "kernels/check.h"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/copy_async.cuh"
#include "kernels/cuda/row_groups.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/sweep.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/layer_norm.h"
#include "kernels/ops.h"
#include "kernels/rms_norm.h"

namespace tessera::kernels::cuda {
namespace {

template <class T>
struct Forward {
  const T *input, *residual;
  T* sum;
  const T *gain, *bias;  // bias: null in rms norm
  T* output;
  float *mean, *rstd;  // mean: null in rms norm
  float epsilon;
};

template <int kCount>
__device__ inline void copy(const float (&from)[kCount], float (&to)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) to[j] = from[j];
}

template <class T, int kWidth, bool kCentered, bool kOnce>
__global__ void __launch_bounds__(kMostRowThreads, kOnce ? 4 : 0)
    norm_forward_kernel(Forward<T> a, RowSweep sweep) {
  __shared__ float shared[kWarp];
  float kept[kWidth];
  const T* const added =
      a.residual == nullptr ? a.input : a.residual;  // never null: no load waits for another
  for (std::int64_t r = blockIdx.x; r < sweep.rows; r += gridDim.x) {
    const std::int64_t first = r * sweep.columns;
    const T* x = a.residual == nullptr ? a.input + first : a.sum + first;
    const auto again = [&]<int kCount>(std::int64_t i, float(&value)[kCount]) {
      if constexpr (kOnce)
        copy(kept, value);
      else
        load(x + i, value);
    };
    float total[1] = {0.0f};
    for_columns<kWidth, kOnce>(sweep, [&]<int kCount>(std::int64_t i) {
      float value[kCount], other[kCount];
      load(a.input + first + i, value);
      load(added + first + i, other);
      if (a.residual != nullptr) {
#pragma unroll
        for (int j = 0; j < kCount; ++j) value[j] += other[j];
        T rounded[kCount];
        round_all<kCount>(value, rounded);
#pragma unroll
        for (int j = 0; j < kCount; ++j) value[j] = to_float(rounded[j]);
        store(value, a.sum + first + i);
      }
      if constexpr (kOnce) copy(value, kept);
#pragma unroll
      for (int j = 0; j < kCount; ++j)
        total[0] = kCentered ? total[0] + value[j] : fmaf(value[j], value[j], total[0]);
    });
    block_sum(total, shared);
    float mean = 0.0f;
    if (kCentered) {
      mean = total[0] / static_cast<float>(sweep.columns);
      total[0] = 0.0f;
      for_columns<kWidth, kOnce>(sweep, [&]<int kCount>(std::int64_t i) {
        float value[kCount];
        again(i, value);
#pragma unroll
        for (int j = 0; j < kCount; ++j) total[0] = fmaf(value[j] - mean, value[j] - mean, total[0]);
      });
      block_sum(total, shared);
    }
    const float rstd = 1.0f / sqrtf(total[0] / static_cast<float>(sweep.columns) + a.epsilon);
    for_columns<kWidth, kOnce>(sweep, [&]<int kCount>(std::int64_t i) {
      float value[kCount], gain[kCount], bias[kCount];
      again(i, value);
      load(a.gain + i, gain);
      if (kCentered) load(a.bias + i, bias);
#pragma unroll
      for (int j = 0; j < kCount; ++j)
        value[j] = kCentered ? fmaf((value[j] - mean) * rstd, gain[j], bias[j]) : value[j] * rstd * gain[j];
      store(value, a.output + first + i);
    });
    if (threadIdx.x == 0) {
      if (kCentered) a.mean[r] = mean;
      a.rstd[r] = rstd;
    }
  }
}

template <class T>
struct Backward {
  const T* input;
  const float *mean, *rstd;  // mean: null in rms norm
  const T *gain, *output_gradient, *residual_gradient;
  T* input_gradient;  // null: the sums alone, which need no gain
  float* partial;     // [groups, gain then bias sums]; null where they are not wanted
};

// Where a column's sum lies in shared memory: neighbouring threads in neighbouring banks.
__device__ inline int slot_of(const RowSweep& sweep, int width, std::int64_t i, int j) {
  const int column = static_cast<int>(i);
  return sweep.vectorized ? j * (sweep.columns / width) + column / width : column;
}

// A block is a group of rows. With g = output_gradient * gain and n the normalised input:
// input_gradient = rstd (g - mean(g) - n mean(g n)), without mean(g) in rms norm.
// Three blocks, where ptxas (13.0) would else give fp32 the 32 registers of four, and spill on sm_90.
template <class T, int kWidth, bool kCentered>
__global__ void __launch_bounds__(kMostRowThreads, sizeof(T) == 4 && kCentered ? 3 : 0)
    norm_backward_kernel(Backward<T> a, RowSweep sweep) {
  float* const column_sums = dynamic_shared();  // gain sums, then bias sums
  __shared__ float shared[2 * kWarp];
  float* bias_sums = column_sums + sweep.columns;
  const auto count = static_cast<float>(sweep.columns);
  if (a.partial != nullptr)
    for_columns<kWidth>(sweep, [&]<int kCount>(std::int64_t i) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        column_sums[slot_of(sweep, kWidth, i, j)] = 0.0f;
        if (kCentered) bias_sums[slot_of(sweep, kWidth, i, j)] = 0.0f;
      }
    });
  const std::int64_t end = group_begin(sweep.rows, gridDim.x, blockIdx.x + 1);
  for (std::int64_t r = group_begin(sweep.rows, gridDim.x, blockIdx.x); r < end; ++r) {
    const std::int64_t first = r * sweep.columns;
    const float mean = kCentered ? a.mean[r] : 0.0f;
    const float rstd = a.rstd[r];
    float sums[2] = {0.0f, 0.0f};  // of g n, and of g
    for_columns<kWidth>(sweep, [&]<int kCount>(std::int64_t i) {
      float x[kCount], dy[kCount], gain[kCount] = {};
      load(a.input + first + i, x);
      load(a.output_gradient + first + i, dy);
      if (a.input_gradient != nullptr) load(a.gain + i, gain);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const float n = (x[j] - mean) * rstd;
        sums[0] = fmaf(dy[j] * gain[j], n, sums[0]);
        if (kCentered) sums[1] = fmaf(dy[j], gain[j], sums[1]);
        if (a.partial == nullptr) continue;
        float& gain_sum = column_sums[slot_of(sweep, kWidth, i, j)];
        gain_sum = fmaf(dy[j], n, gain_sum);
        if (kCentered) bias_sums[slot_of(sweep, kWidth, i, j)] += dy[j];
      }
    });
    if (a.input_gradient == nullptr) continue;
    block_sum(sums, shared);
    const float minus_mean_gn = -(sums[0] / count);
    const float mean_g = sums[1] / count;
    for_columns<kWidth>(sweep, [&]<int kCount>(std::int64_t i) {
      float x[kCount], dy[kCount], gain[kCount], residual[kCount] = {};
      load(a.input + first + i, x);
      load(a.output_gradient + first + i, dy);
      load(a.gain + i, gain);
      if (a.residual_gradient != nullptr) load(a.residual_gradient + first + i, residual);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const float n = (x[j] - mean) * rstd;
        x[j] = residual[j] + rstd * fmaf(n, minus_mean_gn, dy[j] * gain[j] - mean_g);
      }
      store(x, a.input_gradient + first + i);
    });
  }
  if (a.partial == nullptr) return;
  float* gains = a.partial + blockIdx.x * std::int64_t{sweep.columns} * (kCentered ? 2 : 1);
  for_columns<kWidth>(sweep, [&]<int kCount>(std::int64_t i) {
    float gain_sum[kCount], bias_sum[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      gain_sum[j] = column_sums[slot_of(sweep, kWidth, i, j)];
      if (kCentered) bias_sum[j] = bias_sums[slot_of(sweep, kWidth, i, j)];
    }
    store(gain_sum, gains + i);
    if (kCentered) store(bias_sum, gains + sweep.columns + i);
  });
}

// The same where a thread has one vector of each row. Those of the rows to come are on their way to shared
// memory, each to where the thread that asks for it will itself read it.
constexpr int kRowsAhead = 2, kTensors = 3;  // input, output_gradient, residual_gradient
constexpr int once_shared_bytes(int threads) { return kRowsAhead * kTensors * threads * kVectorBytes; }
template <class T, int kWidth, bool kCentered>
__global__ void __launch_bounds__(kMostRowThreads, 2)
    norm_backward_once_kernel(Backward<T> a, RowSweep sweep) {
  using Vector = Pack<T, kWidth>;
  static_assert(sizeof(Vector) == kVectorBytes);
  __shared__ float shared[2 * kWarp];
  auto* const coming = reinterpret_cast<Vector*>(dynamic_shared());  // [rows ahead, tensors, threads]
  const auto count = static_cast<float>(sweep.columns);
  const int i = static_cast<int>(threadIdx.x) * kWidth;
  const bool mine = i < sweep.columns;
  float gain[kWidth] = {}, gain_sum[kWidth] = {}, bias_sum[kWidth] = {};
  if (mine && a.input_gradient != nullptr) load(a.gain + i, gain);
  const auto place = [&](std::int64_t r, unsigned tensor) -> Vector& {
    return coming[(static_cast<unsigned>(r) % kRowsAhead * kTensors + tensor) * blockDim.x + threadIdx.x];
  };
  const std::int64_t begin = group_begin(sweep.rows, gridDim.x, blockIdx.x);
  const std::int64_t end = group_begin(sweep.rows, gridDim.x, blockIdx.x + 1);
  const auto fetch = [&](std::int64_t r) {
    if (mine && r < end) {
      const std::int64_t first = r * sweep.columns + i;
      copy_async(&place(r, 0), a.input + first);
      copy_async(&place(r, 1), a.output_gradient + first);
      if (a.residual_gradient != nullptr) copy_async(&place(r, 2), a.residual_gradient + first);
    }
    close_copies();
  };
  float next_mean = 0.0f, next_rstd = 0.0f;
  const auto fetch_statistics = [&](std::int64_t r) {
    if (r >= end) return;
    if (kCentered) next_mean = a.mean[r];
    next_rstd = a.rstd[r];
  };
  for (int ahead = 0; ahead < kRowsAhead; ++ahead) fetch(begin + ahead);
  fetch_statistics(begin);
  for (std::int64_t r = begin; r < end; ++r) {
    // By shuffles: ptxas (13.0) would else hold them in uniform registers, and wait for them a row early.
    const float mean = __shfl_xor_sync(0xffffffffu, next_mean, 1);
    const float rstd = __shfl_xor_sync(0xffffffffu, next_rstd, 1);
    fetch_statistics(r + 1);
    wait_for_copies<kRowsAhead - 1>();
    float sums[2] = {0.0f, 0.0f};  // of g n, and of g
    if (mine) {
      float n[kWidth], dy[kWidth];
      load(place(r, 0).value, n);
      load(place(r, 1).value, dy);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        n[j] = (n[j] - mean) * rstd;
        sums[0] = fmaf(dy[j] * gain[j], n[j], sums[0]);
        if (kCentered) sums[1] = fmaf(dy[j], gain[j], sums[1]);
        gain_sum[j] = fmaf(dy[j], n[j], gain_sum[j]);
        if (kCentered) bias_sum[j] += dy[j];
      }
    }
    block_sum(sums, shared);
    if (mine &&
        a.input_gradient !=
            nullptr) {  // from shared memory once more: with these in registers two blocks would not fit
      const float minus_mean_gn = -(sums[0] / count);
      const float mean_g = sums[1] / count;
      float x[kWidth], dy[kWidth], residual[kWidth] = {};
      load(place(r, 0).value, x);
      load(place(r, 1).value, dy);
      if (a.residual_gradient != nullptr) load(place(r, 2).value, residual);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const float n = (x[j] - mean) * rstd;
        x[j] = residual[j] + rstd * fmaf(n, minus_mean_gn, dy[j] * gain[j] - mean_g);
      }
      store(x, a.input_gradient + r * sweep.columns + i);
    }
    fetch(r + kRowsAhead);
  }
  if (a.partial == nullptr || !mine) return;
  float* gains = a.partial + blockIdx.x * std::int64_t{sweep.columns} * (kCentered ? 2 : 1);
  store(gain_sum, gains + i);
  if (kCentered) store(bias_sum, gains + sweep.columns + i);
}

template <class T, bool kCentered, class Shape>
void run_forward(const ComputeContext& context, const char* op, const Shape& shape, const Forward<T>& a) {
  constexpr int kWidth = width_of(sizeof(T));
  const auto of = [](const T* data) { return Operand{data, sizeof(T)}; };
  const RowSweep sweep =
      row_sweep_of(shape.rows, shape.channels, kWidth,
                   {of(a.input), of(a.residual), of(a.sum), of(a.gain), of(a.bias), of(a.output)}, {});
  if (sweep.blocks == 0) return;
  const auto kernel = one_vector_each(sweep, kWidth) ? norm_forward_kernel<T, kWidth, kCentered, true>
                                                     : norm_forward_kernel<T, kWidth, kCentered, false>;
  start(context, op, {sweep.blocks, static_cast<unsigned>(sweep.threads)}, kernel, a, sweep);
}

// Bytes of shared memory beyond which a kernel has to ask for them.
constexpr int kPlainSharedBytes = 48 * 1024 - 2 * kWarp * 4;

template <class T, bool kCentered, class Shape>
void run_backward(const ComputeContext& context, const char* op, const Shape& shape, const Backward<T>& a) {
  constexpr int kWidth = width_of(sizeof(T));
  const auto of = [](const T* data) { return Operand{data, sizeof(T)}; };
  const RowSweep sweep = row_sweep_of(shape.rows, shape.channels, kWidth,
                                      {of(a.input),
                                       of(a.gain),
                                       of(a.output_gradient),
                                       of(a.residual_gradient),
                                       of(a.input_gradient),
                                       {a.partial}},
                                      {});
  // Sums of no rows are written, too.
  const unsigned blocks =
      a.partial == nullptr ? sweep.blocks : static_cast<unsigned>(row_groups_of(shape.rows, shape.channels));
  if (blocks == 0 || sweep.columns == 0) return;
  const auto threads = static_cast<unsigned>(sweep.threads);
  const bool once = one_vector_each(sweep, kWidth);
  const auto kernel =
      once ? norm_backward_once_kernel<T, kWidth, kCentered> : norm_backward_kernel<T, kWidth, kCentered>;
  const int shared_bytes = once                   ? once_shared_bytes(sweep.threads)
                           : a.partial == nullptr ? 0
                                                  : sweep.columns * (kCentered ? 8 : 4);
  if (shared_bytes > kPlainSharedBytes && shared_bytes > most_shared(reinterpret_cast<const void*>(kernel)))
    throw UnsupportedError(std::string(op) + ": " + std::to_string(shape.channels) +
                           " channels are more than what a block keeps of a row on this GPU can hold");
  start(context, op, {blocks, threads, static_cast<std::size_t>(shared_bytes)}, kernel, a, sweep);
}

}  // namespace

void layer_norm_forward(const ComputeContext& context, const LayerNormShape& shape,
                        const LayerNormForward& a) {
  check_compute_type(shape.type, "layer_norm_forward");
  check_pair(a.residual != nullptr, a.sum != nullptr, "layer_norm_forward: residual and sum");
  with_compute_type(shape.type, [&](auto t) {
    using T = decltype(t);
    run_forward<T, true>(context, "layer_norm_forward", shape,
                         {.input = static_cast<const T*>(a.input),
                          .residual = static_cast<const T*>(a.residual),
                          .sum = static_cast<T*>(a.sum),
                          .gain = static_cast<const T*>(a.gain),
                          .bias = static_cast<const T*>(a.bias),
                          .output = static_cast<T*>(a.output),
                          .mean = a.mean,
                          .rstd = a.rstd,
                          .epsilon = shape.epsilon});
  });
}

void rms_norm_forward(const ComputeContext& context, const RmsNormShape& shape, const RmsNormForward& a) {
  check_compute_type(shape.type, "rms_norm_forward");
  check_pair(a.residual != nullptr, a.sum != nullptr, "rms_norm_forward: residual and sum");
  with_compute_type(shape.type, [&](auto t) {
    using T = decltype(t);
    run_forward<T, false>(context, "rms_norm_forward", shape,
                          {.input = static_cast<const T*>(a.input),
                           .residual = static_cast<const T*>(a.residual),
                           .sum = static_cast<T*>(a.sum),
                           .gain = static_cast<const T*>(a.gain),
                           .bias = nullptr,
                           .output = static_cast<T*>(a.output),
                           .mean = nullptr,
                           .rstd = a.rstd,
                           .epsilon = shape.epsilon});
  });
}

std::int64_t layer_norm_backward_workspace_bytes(const LayerNormShape& shape, const Target& /*target*/) {
  return workspace_part_bytes(row_groups_of(shape.rows, shape.channels) * shape.channels * 2 * 4);
}

void layer_norm_backward(const ComputeContext& context, const LayerNormShape& shape,
                         const LayerNormBackward& a) {
  check_compute_type(shape.type, "layer_norm_backward");
  check_beta(a.beta, "layer_norm_backward");
  const bool sums = a.gain_gradient != nullptr;
  check_pair(sums, a.bias_gradient != nullptr, "layer_norm_backward: gain_gradient and bias_gradient");
  if (sums)
    check_workspace(context, cuda::layer_norm_backward_workspace_bytes(shape, context.target()),
                    "layer_norm_backward");
  auto* partial = sums ? static_cast<float*>(context.workspace.data) : nullptr;
  with_compute_type(shape.type, [&](auto t) {
    using T = decltype(t);
    run_backward<T, true>(context, "layer_norm_backward", shape,
                          {.input = static_cast<const T*>(a.input),
                           .mean = a.mean,
                           .rstd = a.rstd,
                           .gain = static_cast<const T*>(a.gain),
                           .output_gradient = static_cast<const T*>(a.output_gradient),
                           .residual_gradient = static_cast<const T*>(a.residual_gradient),
                           .input_gradient = static_cast<T*>(a.input_gradient),
                           .partial = partial});
  });
  if (!sums) return;
  add_row_groups(context, row_groups_of(shape.rows, shape.channels), shape.channels, partial, a.beta,
                 shape.type, {a.gain_gradient, a.bias_gradient});
}

std::int64_t rms_norm_backward_workspace_bytes(const RmsNormShape& shape, const Target& /*target*/) {
  return workspace_part_bytes(row_groups_of(shape.rows, shape.channels) * shape.channels * 4);
}

void rms_norm_backward(const ComputeContext& context, const RmsNormShape& shape, const RmsNormBackward& a) {
  check_compute_type(shape.type, "rms_norm_backward");
  check_beta(a.beta, "rms_norm_backward");
  const bool sums = a.gain_gradient != nullptr;
  if (sums)
    check_workspace(context, cuda::rms_norm_backward_workspace_bytes(shape, context.target()),
                    "rms_norm_backward");
  auto* partial = sums ? static_cast<float*>(context.workspace.data) : nullptr;
  with_compute_type(shape.type, [&](auto t) {
    using T = decltype(t);
    run_backward<T, false>(context, "rms_norm_backward", shape,
                           {.input = static_cast<const T*>(a.input),
                            .mean = nullptr,
                            .rstd = a.rstd,
                            .gain = static_cast<const T*>(a.gain),
                            .output_gradient = static_cast<const T*>(a.output_gradient),
                            .residual_gradient = static_cast<const T*>(a.residual_gradient),
                            .input_gradient = static_cast<T*>(a.input_gradient),
                            .partial = partial});
  });
  if (sums)
    add_row_groups(context, row_groups_of(shape.rows, shape.channels), shape.channels, partial, a.beta,
                   shape.type, {a.gain_gradient});
}

}  // namespace tessera::kernels::cuda
