#include "kernels/reduce.h"

#include "kernels/check.h"
#include "kernels/cuda/sweep.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/ops.h"

namespace tessera::kernels::cuda {
namespace {

// Up to kFirstSweep contributions in one pass; all are read at a place before it is written, so that one of
// them may be the accumulator.
template <class T>
struct Chain : Body {
  const T* contributions[kFirstSweep];
  int count;
  bool from_accumulator;
  float* accumulator;

  template <int kCount>
  __device__ void run(std::int64_t i) const {
    using Access = Pack<T, kCount>;
    float sum[kCount] = {};
    Access x[kFirstSweep];
    // All are asked for before the first is added.
#pragma unroll
    for (int c = 0; c < kFirstSweep; ++c)
      if (c < count) x[c] = *reinterpret_cast<const Access*>(contributions[c] + i);
    if (from_accumulator) load(accumulator + i, sum);
#pragma unroll
    for (int c = 0; c < kFirstSweep; ++c) {
      if (c >= count) continue;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const float value = to_float(x[c].value[j]);
        sum[j] = c == 0 && !from_accumulator ? value : sum[j] + value;
      }
    }
    store(sum, accumulator + i);
  }
};

template <class T>
void sweep_chain(const ComputeContext& context, std::int64_t numel,
                 std::span<const void* const> contributions, bool from_accumulator, float* accumulator) {
  Chain<T> body{};
  body.count = static_cast<int>(contributions.size());
  body.from_accumulator = from_accumulator;
  body.accumulator = accumulator;
  Operand operands[kFirstSweep];
  for (std::size_t c = 0; c < contributions.size(); ++c) {
    body.contributions[c] = static_cast<const T*>(contributions[c]);
    operands[c] = {contributions[c], sizeof(T)};
  }
  const Operand* o = operands;
  run_sweep<width_of(sizeof(T))>(context, "ordered_chain", body, numel,
                                 {o[0], o[1], o[2], o[3], o[4], o[5], o[6], o[7], {accumulator}});
}

// The sums of all blocks. kSquareLanes / kWidth threads share a block, each with kWidth lanes; a warp has
// kWidth blocks.
template <class T, int kWidth>
__global__ void __launch_bounds__(kWarp)
    square_blocks_kernel(std::int64_t numel, const T* input, double* block_sums) {
  constexpr int kThreads = kSquareLanes / kWidth;
  const int part = threadIdx.x % kThreads;
  const std::int64_t blocks = square_blocks(numel);
  const std::int64_t block = blockIdx.x * std::int64_t{kWidth} + threadIdx.x / kThreads;
  const std::int64_t begin = block * kSquareBlock;
  const std::int64_t left = numel - begin;
  const int count = block >= blocks       ? 0
                    : left < kSquareBlock ? static_cast<int>(left)
                                          : static_cast<int>(kSquareBlock);
  double lane[kWidth] = {};
  const T* x = input + begin + part * kWidth;
  const int whole = count / kSquareLanes;
#pragma unroll 16
  for (int row = 0; row < whole; ++row) {
    float value[kWidth];
    load(x + row * kSquareLanes, value);
#pragma unroll
    for (int j = 0; j < kWidth; ++j)
      lane[j] = fma(static_cast<double>(value[j]), static_cast<double>(value[j]), lane[j]);
  }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    if (whole * kSquareLanes + part * kWidth + j >= count) continue;
    const double value = to_float(x[whole * kSquareLanes + j]);
    lane[j] = fma(value, value, lane[j]);
  }
  // Pairwise: lanes 16 apart, 8, 4, 2, 1; those of other threads by shuffles.
#pragma unroll
  for (int apart = kSquareLanes / 2; apart >= kWidth; apart /= 2)
#pragma unroll
    for (int j = 0; j < kWidth; ++j)
      lane[j] += __shfl_down_sync(0xffffffffu, lane[j], apart / kWidth, kThreads);
#pragma unroll
  for (int apart = kWidth / 2; apart > 0; apart /= 2)
#pragma unroll
    for (int j = 0; j < apart; ++j) lane[j] += lane[j + apart];
  if (part == 0 && block < blocks) block_sums[block] = lane[0];
}

// One block: a thread for each lane of the sums, which it also asks for the first element that is not finite.
template <class T>
__global__ void __launch_bounds__(kBlockLanes)
    square_total_kernel(std::int64_t numel, const T* input, const double* block_sums, SumOfSquares* result) {
  __shared__ double lane_sum[kBlockLanes];
  __shared__ std::int64_t lane_bad[kBlockLanes];
  __shared__ int first_bad;
  const int lane = threadIdx.x;
  const std::int64_t blocks = square_blocks(numel);
  double sum = 0.0;
  std::int64_t bad = blocks;
#pragma unroll 8
  for (std::int64_t block = lane; block < blocks; block += kBlockLanes) {
    const double next = block_sums[block];
    if (bad == blocks && !isfinite(next)) bad = block;
    sum += next;
  }
  lane_sum[lane] = sum;
  lane_bad[lane] = bad;
  for (int apart = kBlockLanes / 2; apart > 0; apart /= 2) {
    __syncthreads();
    if (lane >= apart) continue;
    lane_sum[lane] += lane_sum[lane + apart];
    if (lane_bad[lane + apart] < lane_bad[lane]) lane_bad[lane] = lane_bad[lane + apart];
  }
  if (lane == 0) first_bad = static_cast<int>(kSquareBlock);
  __syncthreads();
  bad = lane_bad[0];
  const std::int64_t begin = bad * kSquareBlock;
  if (bad < blocks) {
    for (int i = lane; i < kSquareBlock && begin + i < numel; i += kBlockLanes)
      if (!isfinite(to_float(input[begin + i]))) atomicMin(&first_bad, i);
    __syncthreads();
  }
  if (lane == 0) *result = {lane_sum[0], bad < blocks ? begin + first_bad : -1};
}

template <class T, int kWidth>
void start_squares(const ComputeContext& context, std::int64_t numel, const void* input, double* block_sums) {
  const std::int64_t warps = ceil_div(square_blocks(numel), kWidth);
  if (warps == 0) return;
  start(context, "block_squares", {static_cast<unsigned>(warps), kWarp}, square_blocks_kernel<T, kWidth>,
        numel, static_cast<const T*>(input), block_sums);
}

}  // namespace

void ordered_chain(const ComputeContext& context, std::int64_t numel, DType type,
                   std::span<const void* const> contributions, float beta, float* accumulator,
                   double* squares) {
  check_chain(contributions.size(), beta);
  with_type(type, [&](auto t) {
    for (std::size_t done = 0; done < contributions.size(); done += kFirstSweep)
      sweep_chain<decltype(t)>(
          context, numel,
          contributions.subspan(done, std::min<std::size_t>(kFirstSweep, contributions.size() - done)),
          beta != 0.0f || done > 0, accumulator);
  });
  if (squares != nullptr) cuda::block_squares(context, numel, DType::fp32, accumulator, squares);
}

void block_squares(const ComputeContext& context, std::int64_t numel, DType type, const void* input,
                   double* sums) {
  with_type(type, [&](auto t) {
    using T = decltype(t);
    constexpr int kWidth = width_of(sizeof(T));
    if (is_aligned(kWidth, {{input, sizeof(T)}}))
      start_squares<T, kWidth>(context, numel, input, sums);
    else
      start_squares<T, 1>(context, numel, input, sums);
  });
}

void add_block_squares(const ComputeContext& context, std::int64_t numel, DType type, const void* input,
                       const double* sums, SumOfSquares* result) {
  with_type(type, [&](auto t) {
    using T = decltype(t);
    start(context, "add_block_squares", {1, kBlockLanes}, square_total_kernel<T>, numel,
          static_cast<const T*>(input), sums, result);
  });
}

}  // namespace tessera::kernels::cuda
