// Loads and stores of several elements at once, as floats.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

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

template <int kCount, class T>
__device__ inline void store(const float (&x)[kCount], T* p) {
  constexpr int kPart = kPerAccess<T, kCount>;
#pragma unroll
  for (int i = 0; i < kCount; i += kPart) {
    Pack<T, kPart> pack;
#pragma unroll
    for (int j = 0; j < kPart; ++j) pack.value[j] = from_float<T>(x[i + j]);
    *reinterpret_cast<Pack<T, kPart>*>(p + i) = pack;
  }
}

}  // namespace tessera::kernels::cuda
