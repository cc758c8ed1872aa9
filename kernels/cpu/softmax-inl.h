// Maximum and sum of exponentials of a row of logits. Included once per target (Highway's foreach_target.h),
// hence no #pragma once.
#if defined(TESSERA_KERNELS_CPU_SOFTMAX_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_SOFTMAX_INL_H
#undef TESSERA_KERNELS_CPU_SOFTMAX_INL_H
#else
#define TESSERA_KERNELS_CPU_SOFTMAX_INL_H
#endif

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

HWY_INLINE float max_of_row(const float* logits, std::int64_t count) {
  V16 top = set16(logits[0]);
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) top = max(top, load16(logits + i));
  float result = max_lanes(top);
  for (; i < count; ++i) result = std::max(result, logits[i]);
  return result;
}

// Sum of e^(logit - maximum), in blocks of 1024 so that a large vocabulary loses no digits. With these in the
// place of the logits, unless they are const.
template <class Logit>
HWY_INLINE float sum_exp_of_row(Logit* logits, std::int64_t count, float maximum) {
  V16 sum = set16(0.0f);
  for (std::int64_t block = 0; block < count; block += 1024) {
    const std::int64_t end = std::min(block + 1024, count);
    V16 block_sum = set16(0.0f);
    for (std::int64_t i = block; i < end; i += 16) {
      const V16 e = exp16(sub(load_some(logits + i, end - i), set16(maximum)));
      if constexpr (!std::is_const_v<Logit>) store_some(e, logits + i, end - i);
      block_sum = add(block_sum, fill_lanes_from(e, end - i, 0.0f));
    }
    sum = add(sum, block_sum);
  }
  return sum_lanes(sum);
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
