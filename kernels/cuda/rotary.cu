#include "kernels/rotary.h"

#include <string>

#include "kernels/check.h"
#include "kernels/cuda/sweep.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/ops.h"
#include "kernels/rotary_math.h"

namespace tessera::kernels::cuda {
namespace {

// The frequencies lie in host memory and travel with the launch.
constexpr int kMostFrequencies = 256;
struct Frequencies {
  float value[kMostFrequencies];
};

// Row `place` of the table: the cosines of its angles, then their sines.
__global__ void __launch_bounds__(kBlock)
    rotary_table_kernel(std::int64_t first, std::int64_t sequence, int half, Frequencies frequencies,
                        float* table) {
  const std::int64_t numel = sequence * half;
  const std::int64_t stride = gridDim.x * static_cast<std::int64_t>(kBlock);
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kBlock) + threadIdx.x; i < numel;
       i += stride) {
    const std::int64_t place = i / half;
    const int channel = static_cast<int>(i % half);
    const Rotation rotation = rotation_of(first + place, frequencies.value[channel]);
    table[place * 2 * half + channel] = rotation.cosine;
    table[place * 2 * half + half + channel] = rotation.sine;
  }
}

// A row's columns are the pairs of all its heads.
template <class T>
struct Rotate {
  std::int64_t sequence, row_numel;
  int half;
  bool back;
  const float* table;
  T* tensor;

  struct Row {
    int half;
    bool back;
    const float* angles;
    T* heads;

    template <int kCount>
    __device__ void run(std::int64_t i) const {
      const int column = static_cast<int>(i);
      const int channel = column % half;
      T* first = heads + 2 * (column - channel) + channel;
      float a[kCount], b[kCount], cosine[kCount], sine[kCount];
      load(first, a);
      load(first + half, b);
      load(angles + channel, cosine);
      load(angles + half + channel, sine);
#pragma unroll
      for (int j = 0; j < kCount; ++j) rotate_element({cosine[j], sine[j]}, back, a[j], b[j]);
      store(a, first);
      store(b, first + half);
    }
  };
  __device__ Row row(std::int64_t r) const {
    return {half, back, table + r % sequence * 2 * half, tensor + r * row_numel};
  }
};

void rotate(const ComputeContext& context, const RotaryShape& shape, const float* frequencies, bool back,
            void* tensor) {
  const char* op = back ? "rotary_backward" : "rotary_forward";
  check_rotary(shape, op);
  check_workspace(context, rotary_workspace_bytes(shape), op);
  const auto half = static_cast<int>(shape.head_channels / 2);
  if (half > kMostFrequencies)
    throw UnsupportedError(std::string(op) + ": on CUDA a head has at most " +
                           std::to_string(2 * kMostFrequencies) + " channels, not " +
                           std::to_string(shape.head_channels));
  if (shape.sequence < 1) return;
  Frequencies by_value{};
  std::copy_n(frequencies, half, by_value.value);
  auto* table = static_cast<float*>(context.workspace.data);
  start(context, op, {blocks_of(shape.sequence * half, kBlock), kBlock}, rotary_table_kernel,
        shape.first_place, shape.sequence, half, by_value, table);
  with_compute_type(shape.type, [&](auto t) {
    using T = decltype(t);
    constexpr int kWidth = width_of(sizeof(T));
    const Rotate<T> body = {shape.sequence, shape.row_numel, half, back, table, static_cast<T*>(tensor)};
    run_row_sweep<kWidth>(context, op, body,
                          row_sweep_of(shape.batch * shape.sequence, shape.heads * half, kWidth,
                                       {{tensor, sizeof(T)}, {table}}, {shape.row_numel, half}));
  });
}

}  // namespace

void rotary_forward(const ComputeContext& context, const RotaryShape& shape, const float* frequencies,
                    void* tensor) {
  rotate(context, shape, frequencies, false, tensor);
}

void rotary_backward(const ComputeContext& context, const RotaryShape& shape, const float* frequencies,
                     void* gradient) {
  rotate(context, shape, frequencies, true, gradient);
}

}  // namespace tessera::kernels::cuda
