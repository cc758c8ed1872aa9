// Loads and stores of several elements at once, as floats.
#pragma once

#ifdef __CUDACC__
#include <cuda_bf16.h>
#endif
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/launch.h"
#include "kernels/float_types.h"

namespace tessera::kernels::cuda {

template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T value[kCount];
};

// Elements of one access: kVectorBytes at most.
template <class T, int kCount>
inline constexpr int kPerAccess = kCount < width_of(sizeof(T)) ? kCount : width_of(sizeof(T));

// x = p[0 .. kCount), p aligned to all of them, or to kVectorBytes.
template <int kCount, class T>
__device__ inline void load(const T* p, float (&x)[kCount]) {
  constexpr int kPart = kPerAccess<T, kCount>;
#pragma unroll
  for (int i = 0; i < kCount; i += kPart) {
    const auto pack = *reinterpret_cast<const Pack<T, kPart>*>(p + i);
#pragma unroll
    for (int j = 0; j < kPart; ++j) x[i + j] = to_float(pack.value[j]);
  }
}

// Two elements rounded as from_float<Bf16>() does, by one instruction where there is one; which NaN a NaN
// becomes is that one's.
__device__ inline void round_pair(float low, float high, Bf16* to) {
#ifdef __CUDA_ARCH__
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  to[0].bits = __bfloat16_as_ushort(pair.x);
  to[1].bits = __bfloat16_as_ushort(pair.y);
#else
  to[0] = from_float<Bf16>(low);
  to[1] = from_float<Bf16>(high);
#endif
}

// to[0 .. kCount) = x.
template <int kCount, class T>
__device__ inline void round_all(const float* x, T* to) {
  if constexpr (std::is_same_v<T, Bf16> && kCount % 2 == 0) {
#pragma unroll
    for (int j = 0; j < kCount; j += 2) round_pair(x[j], x[j + 1], to + j);
  } else {
#pragma unroll
    for (int j = 0; j < kCount; ++j) to[j] = from_float<T>(x[j]);
  }
}

template <int kCount, class T>
__device__ inline void store(const float (&x)[kCount], T* p) {
  constexpr int kPart = kPerAccess<T, kCount>;
#pragma unroll
  for (int i = 0; i < kCount; i += kPart) {
    Pack<T, kPart> pack;
    round_all<kPart>(x + i, pack.value);
    *reinterpret_cast<Pack<T, kPart>*>(p + i) = pack;
  }
}

}  // namespace tessera::kernels::cuda
