#include "kernels/dropout.h"

#include "kernels/cuda/sweep.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/dropout_math.h"
#include "kernels/ops.h"

namespace tessera::kernels::cuda {
namespace {

template <class T>
struct Drop {
  Dropout dropout;
  float scale;
  std::int64_t sequence, channels, first_row;
  const T* input;
  T* output;

  struct Row {
    Dropout dropout;
    float scale;
    DrawnRow at;
    const T* input;
    T* output;

    // A vector lies in one block of eight elements.
    template <int kCount>
    __device__ void run(std::int64_t i) const {
      static_assert(8 % kCount == 0);
      const unsigned kept =
          kept_bits(dropout, at, static_cast<std::uint32_t>(i / 8)) >> static_cast<unsigned>(i % 8);
      float x[kCount];
      load(input + i, x);
#pragma unroll
      for (int j = 0; j < kCount; ++j) x[j] = (kept >> j & 1u) != 0 ? x[j] * scale : 0.0f;
      store(x, output + i);
    }
  };
  __device__ Row row(std::int64_t r) const {
    const std::int64_t of_batch = first_row + r;
    return {
        at_step(dropout),
        scale,
        {static_cast<std::uint32_t>(of_batch / sequence), 0, static_cast<std::uint32_t>(of_batch % sequence)},
        input + r * channels,
        output + r * channels};
  }
};

}  // namespace

void dropout(const ComputeContext& context, const DropoutShape& shape, const Dropout& dropout,
             const void* input, void* output) {
  const std::int64_t rows = shape.rows_or_all(), channels = shape.channels;
  with_compute_type(shape.type, [&](auto t) {
    using T = decltype(t);
    constexpr int kWidth = width_of(sizeof(T));
    const Drop<T> body = {dropout,
                          dropout.scale(),
                          shape.sequence,
                          channels,
                          shape.first_row,
                          static_cast<const T*>(input),
                          static_cast<T*>(output)};
    run_row_sweep<kWidth>(
        context, "dropout", body,
        row_sweep_of(rows, channels, kWidth, {{input, sizeof(T)}, {output, sizeof(T)}}, {channels}));
  });
}

}  // namespace tessera::kernels::cuda
