#include "kernels/round_sum.h"

#include "kernels/cuda/sweep.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/ops.h"

namespace tessera::kernels::cuda {
namespace {

template <class T>
struct RoundSum {
  RoundSumShape shape;
  const float* sum;
  const T* table;
  T* output;

  struct Row {
    const float* sum;
    const T* added;
    T* output;

    template <int kCount>
    __device__ void run(std::int64_t i) const {
      float x[kCount], y[kCount];
      load(sum + i, x);
      load(added + i, y);
#pragma unroll
      for (int j = 0; j < kCount; ++j) x[j] += y[j];
      store(x, output + i);
    }
  };
  __device__ Row row(std::int64_t r) const {
    const std::int64_t channels = shape.channels;
    return {sum + r * channels, table + (shape.first_row + r) % shape.table_rows * channels,
            output + r * channels};
  }
};

}  // namespace

void round_sum(const ComputeContext& context, const RoundSumShape& shape, const float* sum, const void* table,
               void* output) {
  with_compute_type(shape.type, [&](auto t) {
    using T = decltype(t);
    constexpr int kWidth = width_of(sizeof(T));
    const RoundSum<T> body = {shape, sum, static_cast<const T*>(table), static_cast<T*>(output)};
    run_row_sweep<kWidth>(context, "round_sum", body,
                          row_sweep_of(shape.rows, shape.channels, kWidth,
                                       {{sum, sizeof(float)}, {table, sizeof(T)}, {output, sizeof(T)}}, {}));
  });
}

}  // namespace tessera::kernels::cuda
