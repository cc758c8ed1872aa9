// The two shapes of a memory-bound kernel: over all elements, and over the columns of each row.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/start.cuh"
#include "kernels/float_types.h"
#include "tessera/dtype.h"

namespace tessera::kernels::cuda {

// Calls function(T{}) with the C++ type of `type`.
template <class Function>
void with_compute_type(DType type, Function&& function) {
  if (type == DType::fp32)
    function(float{});
  else
    function(Bf16{});
}
template <class Function>
void with_type(DType type, Function&& function) {
  if (type == DType::fp16)
    function(Fp16{});
  else
    with_compute_type(type, function);
}

// What a body has that needs no preparation.
struct Body {
  __device__ bool start() { return true; }  // once a thread; false ends it
};

// body.template run<kCount>(i) works on the elements [i, i + kCount).
template <int kWidth, class B>
__global__ void __launch_bounds__(kBlock) sweep_kernel(B body, Sweep sweep) {
  if (!body.start()) return;
  const std::int64_t thread = blockIdx.x * static_cast<std::int64_t>(kBlock) + threadIdx.x;
  const std::int64_t stride = gridDim.x * static_cast<std::int64_t>(kBlock);
  for (std::int64_t i = thread; i < sweep.vectors; i += stride) body.template run<kWidth>(i * kWidth);
  for (std::int64_t i = sweep.vectors * kWidth + thread; i < sweep.numel; i += stride)
    body.template run<1>(i);
}

template <int kWidth, class B>
void run_sweep(const ComputeContext& context, const char* op, const B& body, std::int64_t numel,
               std::initializer_list<Operand> operands) {
  const Sweep sweep = sweep_of(numel, kWidth, operands);
  if (sweep.blocks == 0) return;
  start(context, op, {sweep.blocks, kBlock}, sweep_kernel<kWidth, B>, body, sweep);
}

// body.row(r) gives what works on a row: its template run<kCount>(column). Columns have 64 bits:
// where they are ints nvcc 13.0 stores the vectors element by element.
template <int kWidth, class B>
__global__ void __launch_bounds__(kMostRowThreads) row_sweep_kernel(B body, RowSweep sweep) {
  for (std::int64_t r = blockIdx.x; r < sweep.rows; r += gridDim.x) {
    const auto row = body.row(r);
    if (sweep.vectorized)
      for (int v = threadIdx.x; v < sweep.columns / kWidth; v += blockDim.x)
        row.template run<kWidth>(std::int64_t{v} * kWidth);
    else
      for (int i = threadIdx.x; i < sweep.columns; i += blockDim.x) row.template run<1>(i);
  }
}

template <int kWidth, class B>
void run_row_sweep(const ComputeContext& context, const char* op, const B& body, const RowSweep& sweep) {
  if (sweep.blocks == 0) return;
  start(context, op, {sweep.blocks, static_cast<unsigned>(sweep.threads)}, row_sweep_kernel<kWidth, B>, body,
        sweep);
}

}  // namespace tessera::kernels::cuda
