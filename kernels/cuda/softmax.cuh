// A row of logits: what a block of threads makes of it, and how they share it.
#pragma once

#include <cuda_runtime.h>
#include <math_constants.h>

#include <cmath>
#include <cstdint>

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/softmax_math.h"

namespace tessera::kernels::cuda {

constexpr float kNoLogit = -INFINITY;

// e^x in few instructions, of which the kernels are to take less time than the memory; below the smallest
// normal number it is 0.
__device__ inline float exp_of(float x) {
#ifdef __CUDA_ARCH__
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
  return power;
#else
  return std::exp(x);
#endif
}

// What a thread, then all of its block, has seen of a row's logits: the maximum and, in sum[0], the sum of
// e^(logit - maximum).
struct Softmax {
  float maximum = kNoLogit;
  float sum[1] = {0.0f};

  template <int kParts, int kCount>
  __device__ void add(const float (&x)[kParts][kCount]) {
    float top = maximum;
#pragma unroll
    for (int i = 0; i < kParts * kCount; ++i) top = fmaxf(top, x[i / kCount][i % kCount]);
    if (top > maximum) {
      sum[0] *= exp_of(maximum - top);
      maximum = top;
    }
    if (maximum == kNoLogit) return;  // none yet, which less itself would be no number
#pragma unroll
    for (int i = 0; i < kParts * kCount; ++i) sum[0] += exp_of(x[i / kCount][i % kCount] - maximum);
  }

  // `shared`: as in block_combine().
  __device__ void combine(float* shared) {
    float top[1] = {maximum};
    block_combine(
        top, kNoLogit, [](float x, float y) { return fmaxf(x, y); }, shared);
    if (maximum < top[0]) sum[0] *= exp_of(maximum - top[0]);  // 0 where this thread had no logits
    maximum = top[0];
    block_sum(sum, shared);
  }
};

// Targets of -1 count for nothing; of others that are none, nothing is a number.
__device__ inline bool is_counted(int target, int vocabulary) { return target >= 0 && target < vocabulary; }
__device__ inline float not_counted(int target) { return target == -1 ? 0.0f : CUDART_NAN_F; }

__device__ inline float loss_of(const SoftmaxStatistics& all, int target, int vocabulary) {
  return is_counted(target, vocabulary) ? softmax_loss(all) : not_counted(target);
}

// What becomes of the logits of a row: gradients.
class Outcome {
 public:
  // `first`: the token of the row's first logit.
  __device__ Outcome(const SoftmaxStatistics& all, int target, int vocabulary, int first, float scale)
      : target_(target - first),
        is_counted_(is_counted(target, vocabulary)),
        maximum_(all.maximum),
        factor_(scale / all.sum),
        otherwise_(not_counted(target)),
        at_target_(scale * (exp_of(all.target_logit - all.maximum) / all.sum - 1.0f)) {}

  // In place of the logits from `i` on.
  template <int kCount>
  __device__ void differentiate(float (&x)[kCount], int i) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j) x[j] = is_counted_ ? exp_of(x[j] - maximum_) * factor_ : otherwise_;
    if (!is_counted_ || target_ < i || target_ >= i + kCount) return;
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      if (i + j == target_) x[j] = at_target_;
  }

 private:
  int target_;
  bool is_counted_;
  float maximum_, factor_, otherwise_, at_target_;
};

// How the threads of a block share a row: by tiles, of each of which a thread has kParts vectors.
template <int kThreads_, int kParts_, int kCount_>
struct Sharing {
  static constexpr int kThreads = kThreads_, kParts = kParts_, kCount = kCount_;
  static constexpr int kTile = kThreads * kParts * kCount;

  // Whether all of a tile is in [begin, end).
  static __device__ bool is_whole(int tile, int begin, int end) {
    return tile * kTile >= begin && (tile + 1) * kTile <= end;
  }

  // Calls function(part, i) for the thread's vectors of a tile that begin at an i in [begin, end).
  template <class Function>
  static __device__ void for_parts(int tile, int begin, int end, Function&& function) {
    const auto place_of = [tile](int part) {
      return tile * kTile + (part * kThreads + static_cast<int>(threadIdx.x)) * kCount;
    };
    if (is_whole(tile, begin, end)) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) function(part, place_of(part));
    } else {
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        if (const int i = place_of(part); i >= begin && i < end) function(part, i);
    }
  }

  // Loads from `from`, a row; beyond its end is no logit.
  static __device__ void load_logits(const float* from, int i, int count, float (&x)[kCount]) {
    load(from + i, x);
    if (i + kCount <= count) return;
#pragma unroll
    for (int j = 1; j < kCount; ++j)
      if (i + j >= count) x[j] = kNoLogit;
  }

  static __device__ void clear(float (&x)[kParts][kCount]) {
#pragma unroll
    for (int i = 0; i < kParts * kCount; ++i) x[i / kCount][i % kCount] = kNoLogit;
  }

  // Gradients in place of the logits from `begin` on, which are read once more; of those before it nothing is
  // read any more. T is no wider than float: where a tile's gradients lie over logits from `begin` on, they
  // are written when all threads have read that tile and those before it.
  template <class T>
  static __device__ void replace(int count, float* logits, int begin, const Outcome& outcome) {
    for (int tile = begin / kTile; tile * kTile < count; ++tile) {
      float x[kParts][kCount];
      for_parts(tile, begin, count, [&](int part, int i) { load(logits + i, x[part]); });
      constexpr int kNarrower = 4 / static_cast<int>(sizeof(T));
      if (kNarrower > 1 && (tile + 1) * kTile > begin * kNarrower) __syncthreads();
      for_parts(tile, begin, count, [&](int part, int i) {
        outcome.differentiate(x[part], i);
        store(x[part], reinterpret_cast<T*>(logits) + i);
      });
    }
  }
};

// A block is a row.
using Short = Sharing<512, 1, 8>;
using Long = Sharing<1024, 2, 4>;

// The most bytes of a row that Short shares. A GPU works on some 528 rows at once (H100), and its cache has
// 50 MB.
constexpr std::int64_t kMostCachedBytes = 64 << 10;
constexpr bool is_short(std::int64_t count) { return count * 4 <= kMostCachedBytes; }

}  // namespace tessera::kernels::cuda
