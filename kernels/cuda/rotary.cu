#include "kernels/rotary.h"

#include <algorithm>
#include <string>

#include "kernels/check.h"
#include "kernels/cuda/block.cuh"
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

template <class T>
struct Rotate {
  std::int64_t first, sequence, batch, row_numel;
  int half;
  bool back;
  T* tensor;
};

// A block has a place, or several one after the other, in some of the sequences: its threads make the place's
// angles for each other, and then each rotates its pairs in row after row. A row's columns are the pairs of
// all its heads. To keep the angles of all places in memory would take a launch more, and every row would
// read head_channels * 4 bytes beside its own elements.
template <class T, int kWidth>
__global__ void __launch_bounds__(kMostRowThreads)
    rotate_kernel(Rotate<T> a, Frequencies frequencies, RowSweep sweep) {
  alignas(kVectorBytes) __shared__ float angles[2 * kMostFrequencies];  // cosines, then sines
  for (std::int64_t place = blockIdx.x; place < a.sequence; place += gridDim.x) {
    __syncthreads();  // nobody reads the angles of the place before any more
    for (int channel = threadIdx.x; channel < a.half; channel += blockDim.x) {
      const Rotation rotation = rotation_of(a.first + place, frequencies.value[channel]);
      angles[channel] = rotation.cosine;
      angles[a.half + channel] = rotation.sine;
    }
    __syncthreads();
    for (std::int64_t b = blockIdx.y; b < a.batch; b += gridDim.y) {
      T* const heads = a.tensor + (b * a.sequence + place) * a.row_numel;
      for_columns<kWidth>(sweep, [&]<int kCount>(std::int64_t i) {
        const int column = static_cast<int>(i);
        const int channel = column % a.half;
        T* const first = heads + 2 * (column - channel) + channel;
        float x[kCount], y[kCount], cosine[kCount], sine[kCount];
        load(first, x);
        load(first + a.half, y);
        load(angles + channel, cosine);
        load(angles + a.half + channel, sine);
#pragma unroll
        for (int j = 0; j < kCount; ++j) rotate_element({cosine[j], sine[j]}, a.back, x[j], y[j]);
        store(x, first);
        store(y, first + a.half);
      });
    }
  }
}

// Blocks that are enough to fill a GPU, where the places alone are not.
constexpr std::int64_t kEnoughBlocks = 2048;

void rotate(const ComputeContext& context, const RotaryShape& shape, const float* frequencies, bool back,
            void* tensor) {
  const char* op = back ? "rotary_backward" : "rotary_forward";
  check_rotary(shape, op);
  const auto half = static_cast<int>(shape.head_channels / 2);
  if (half > kMostFrequencies)
    throw UnsupportedError(std::string(op) + ": on CUDA a head has at most " +
                           std::to_string(2 * kMostFrequencies) + " channels, not " +
                           std::to_string(shape.head_channels));
  Frequencies by_value{};
  std::copy_n(frequencies, half, by_value.value);
  with_compute_type(shape.type, [&](auto t) {
    using T = decltype(t);
    constexpr int kWidth = width_of(sizeof(T));
    const RowSweep sweep = row_sweep_of(shape.sequence, shape.heads * half, kWidth, {{tensor, sizeof(T)}},
                                        {shape.row_numel, half});
    if (sweep.blocks == 0 || shape.batch < 1) return;
    const auto batches = static_cast<unsigned>(
        std::min(shape.batch, ceil_div(kEnoughBlocks, static_cast<std::int64_t>(sweep.blocks))));
    const Rotate<T> rotation = {.first = shape.first_place,
                                .sequence = shape.sequence,
                                .batch = shape.batch,
                                .row_numel = shape.row_numel,
                                .half = half,
                                .back = back,
                                .tensor = static_cast<T*>(tensor)};
    start(context, op, {dim3(sweep.blocks, batches), static_cast<unsigned>(sweep.threads)},
          rotate_kernel<T, kWidth>, rotation, by_value, sweep);
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
