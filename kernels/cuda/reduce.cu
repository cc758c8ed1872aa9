#include "kernels/reduce.h"

#include "kernels/check.h"
#include "kernels/cuda/sweep.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/exact_sum.h"
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

using SquareWords = decltype(SquareSum::sum);
constexpr int kSquareWords = sizeof(SquareWords) / sizeof(std::uint64_t);

// Adds by atomics: whole numbers, so that their order does not matter.
__device__ void add_atomically(SquareWords& to, const SquareWords& from) {
  unsigned long long carry = 0;
  for (int w = 0; w < kSquareWords; ++w) {
    const unsigned long long more = from.words[w] + carry;
    if (more == 0) continue;  // nothing to add, or a carry that goes on
    const unsigned long long before = atomicAdd(reinterpret_cast<unsigned long long*>(&to.words[w]), more);
    carry = before + more < more;
  }
}

// x[0 .. kWidth) = the elements from `begin` on; 0 from `numel` on.
template <bool kVectors, int kWidth, class T>
__device__ void load_some(const T* input, std::int64_t begin, std::int64_t numel, float (&x)[kWidth]) {
  if (kVectors && begin + kWidth <= numel) return load(input + begin, x);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) x[j] = begin + j < numel ? to_float(input[begin + j]) : 0.0f;
}

// The sum of a block's squares, of which each of kSquareBlock / kWidth threads has kWidth in a row: elements
// 32 apart are added first, then 16, 8, 4, 2 and 1. While a thread has several, it gives half of them to the
// thread it adds up with.
template <int kWidth>
__device__ double sum_of_block(double (&square)[kWidth], int part) {
  constexpr int kThreads = kSquareBlock / kWidth;
  int held = kWidth;
#pragma unroll
  for (int apart = kThreads / 2; apart > 0; apart /= 2) {
    if (held == 1) {
      square[0] += __shfl_xor_sync(0xffffffffu, square[0], apart);
      continue;
    }
    held /= 2;
    const bool upper = (part & apart) != 0;
#pragma unroll
    for (int j = 0; j < kWidth / 2; ++j) {
      if (j >= held) continue;
      const double kept = upper ? square[j + held] : square[j], given = upper ? square[j] : square[j + held];
      square[j] = kept + __shfl_xor_sync(0xffffffffu, given, apart);
    }
  }
  // What was in one thread is now in several.
#pragma unroll
  for (int count = kWidth, apart = kThreads / 2; count > 1; count /= 2, apart /= 2)
    square[0] += __shfl_xor_sync(0xffffffffu, square[0], apart);
  return square[0];
}

// Groups of threads take a block of elements each, some at once. Each of those has an exact sum in shared
// memory; in the end these are added up, and then to the result.
template <class T, bool kVectors>
__global__ void __launch_bounds__(kBlock)
    square_sum_kernel(std::int64_t numel, const T* input, std::int64_t first, SquareSum* result) {
  constexpr int kWidth = width_of(sizeof(T)), kThreads = kSquareBlock / kWidth;
  constexpr int kGroups = kBlock / kThreads, kAtOnce = 4, kSums = kGroups * kAtOnce;
  __shared__ std::uint64_t memory[kSums * kSquareWords];
  auto* const sums = reinterpret_cast<SquareWords*>(memory);
  const int thread = threadIdx.x, group = thread / kThreads, part = thread % kThreads;
  if (thread < kSums) sums[thread] = {};
  __syncthreads();
  const std::int64_t blocks = (numel + kSquareBlock - 1) / kSquareBlock;
  std::int64_t bad = numel;
  for (std::int64_t b = blockIdx.x * std::int64_t{kSums}; b < blocks; b += gridDim.x * std::int64_t{kSums}) {
    const std::int64_t begin = (b + group) * kSquareBlock + part * kWidth;
    constexpr std::int64_t kApart = std::int64_t{kGroups} * kSquareBlock;
    float x[kAtOnce][kWidth];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) load_some<kVectors>(input, begin + k * kApart, numel, x[k]);
    double own = 0.0;  // of the block that this thread adds to its sum
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      double square[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; ++j)
        square[j] = static_cast<double>(x[k][j]) * static_cast<double>(x[k][j]);
      const double sum = sum_of_block(square, part);
      if (part == k) own = sum;
      if (isfinite(sum)) continue;
      for (int j = kWidth - 1; j >= 0; --j) {
        const std::int64_t place = begin + k * kApart + j;
        if (!isfinite(x[k][j]) && place < bad) bad = place;
      }
    }
    if (part < kAtOnce && isfinite(own)) exact::add_magnitude(sums[group * kAtOnce + part], own);
  }
  for (int apart = kSums / 2; apart > 0; apart /= 2) {
    __syncthreads();
    if (thread < apart) exact::add(sums[thread], sums[thread + apart]);
  }
  if (thread == 0) add_atomically(result->sum, sums[0]);
  if (bad < numel)
    atomicMax(reinterpret_cast<long long*>(&result->nonfinite),
              static_cast<long long>(exact::kFarthest - (first + bad)));
}

template <class T, bool kVectors>
void start_squares(const ComputeContext& context, std::int64_t numel, const void* input,
                   const Squares& squares) {
  constexpr std::int64_t kPerBlock = 4 * kBlock * width_of(sizeof(T));  // elements that are read at once
  constexpr std::int64_t kMost = 1024;  // enough for any GPU; each adds to the result once
  const std::int64_t blocks = std::min(ceil_div(numel, kPerBlock), kMost);
  if (blocks == 0) return;
  start(context, "sum_of_squares", {static_cast<unsigned>(blocks), kBlock}, square_sum_kernel<T, kVectors>,
        numel, static_cast<const T*>(input), squares.first, squares.sum);
}

}  // namespace

void ordered_chain(const ComputeContext& context, std::int64_t numel, DType type,
                   std::span<const void* const> contributions, float beta, float* accumulator,
                   const Squares& squares) {
  check_chain(contributions.size(), beta);
  with_type(type, [&](auto t) {
    for (std::size_t done = 0; done < contributions.size(); done += kFirstSweep)
      sweep_chain<decltype(t)>(
          context, numel,
          contributions.subspan(done, std::min<std::size_t>(kFirstSweep, contributions.size() - done)),
          beta != 0.0f || done > 0, accumulator);
  });
  if (squares.sum != nullptr) cuda::sum_of_squares(context, numel, DType::fp32, accumulator, squares);
}

void sum_of_squares(const ComputeContext& context, std::int64_t numel, DType type, const void* input,
                    const Squares& squares) {
  with_type(type, [&](auto t) {
    using T = decltype(t);
    if (is_aligned(width_of(sizeof(T)), {{input, sizeof(T)}}))
      start_squares<T, true>(context, numel, input, squares);
    else
      start_squares<T, false>(context, numel, input, squares);
  });
}

}  // namespace tessera::kernels::cuda
