#include "kernels/optimizer.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "hwy/cache_control.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/optimizer.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// Elements worked on at a time: few enough that what one loop writes the next one finds in the first cache
// level.
constexpr std::int64_t kBlock = 1024;

// As adamw_element, operation by operation, on elements [begin, begin + count) and their gradients.
HWY_INLINE void update_block(const AdamWArguments& a, const float* gradients, std::int64_t begin,
                             std::int64_t count) {
  const AdamWCoefficients& c = a.coefficients;
  float *master = a.master + begin, *first = a.m + begin, *second = a.v + begin;
  const V16 scale = set16(c.gradient_scale), l2 = set16(c.l2);
  const V16 beta1 = set16(c.beta1), one_minus_beta1 = set16(c.one_minus_beta1);
  const V16 beta2 = set16(c.beta2), one_minus_beta2 = set16(c.one_minus_beta2);
  const V16 minus_step = set16(-c.step), denominator_scale = set16(c.denominator_scale);
  const V16 epsilon = set16(c.epsilon), decay = set16(c.decay);
  for (std::int64_t i = 0; i < count; i += 16) {
    const std::int64_t lanes = count - i;
    V16 p = load_some(master + i, lanes);
    const V16 g = fma(l2, p, mul(load_some(gradients + i, lanes), scale));
    const V16 m = fma(beta1, load_some(first + i, lanes), mul(one_minus_beta1, g));
    const V16 v = fma(beta2, load_some(second + i, lanes), mul(mul(one_minus_beta2, g), g));
    const V16 denominator = fma(sqrt(v), denominator_scale, epsilon);
    p = fma(minus_step, div(m, denominator), mul(p, decay));
    store_some(m, first + i, lanes);
    store_some(v, second + i, lanes);
    store_some(p, master + i, lanes);
  }
}

// As sgd_element, operation by operation.
HWY_INLINE void update_block(const SgdArguments& a, const float* gradients, std::int64_t begin,
                             std::int64_t count) {
  const SgdCoefficients& c = a.coefficients;
  float* master = a.master + begin;
  const V16 scale = set16(c.gradient_scale), weight_decay = set16(c.weight_decay);
  const V16 momentum = set16(c.momentum), minus_rate = set16(-c.learning_rate);
  for (std::int64_t i = 0; i < count; i += 16) {
    const std::int64_t lanes = count - i;
    const V16 p = load_some(master + i, lanes);
    const V16 g = fma(weight_decay, p, mul(load_some(gradients + i, lanes), scale));
    V16 direction = g;
    if (a.momentum != nullptr) {
      const V16 buffer = fma(momentum, load_some(a.momentum + begin + i, lanes), g);
      store_some(buffer, a.momentum + begin + i, lanes);
      direction = c.nesterov ? fma(momentum, buffer, g) : buffer;
    }
    store_some(fma(minus_rate, direction, p), master + i, lanes);
  }
}

template <class T>
HWY_INLINE void widen(const T* input, std::int64_t count, float* output) {
  for (std::int64_t i = 0; i < count; i += 16)
    store_some(load_some(input + i, count - i), output + i, count - i);
}

// `streamed`: the parameter is only written, so reading its lines into the caches first would be wasted.
template <class T>
HWY_INLINE void narrow(const float* master, std::int64_t count, bool streamed, T* parameter) {
  std::int64_t i = 0;
  if (streamed)
    for (; i + 16 <= count; i += 16) stream16(load16(master + i), parameter + i);
  for (; i < count; i += 16) store_some(load_some(master + i, count - i), parameter + i, count - i);
}

template <class Arguments>
HWY_INLINE const float* gradients_of(const Arguments& a, std::int64_t begin, std::int64_t count,
                                     float* buffer) {
  switch (a.gradient_type) {
    case DType::fp32:
      return static_cast<const float*>(a.gradient) + begin;
    case DType::bf16:
      widen(static_cast<const Bf16*>(a.gradient) + begin, count, buffer);
      break;
    case DType::fp16:
      widen(static_cast<const Fp16*>(a.gradient) + begin, count, buffer);
      break;
  }
  return buffer;
}

template <class Arguments>
HWY_INLINE void put_parameter(const Arguments& a, std::int64_t begin, std::int64_t count, bool streamed) {
  const float* master = a.master + begin;
  switch (a.parameter_type) {
    case DType::fp32:
      return widen(master, count, static_cast<float*>(a.parameter) + begin);
    case DType::bf16:
      return narrow(master, count, streamed, static_cast<Bf16*>(a.parameter) + begin);
    case DType::fp16:
      return narrow(master, count, streamed, static_cast<Fp16*>(a.parameter) + begin);
  }
}

template <class Arguments>
HWY_INLINE void update_range(const Arguments& a, std::int64_t begin, std::int64_t end, bool streamed) {
  alignas(64) float buffer[kBlock];
  for (std::int64_t block = begin; block < end; block += kBlock) {
    const std::int64_t count = std::min(kBlock, end - block);
    update_block(a, gradients_of(a, block, count, buffer), block, count);
    if (a.parameter != nullptr) put_parameter(a, block, count, streamed);
  }
  if (streamed) hwy::FlushStream();
}

void adamw_range(const AdamWArguments& a, std::int64_t begin, std::int64_t end, bool streamed) {
  update_range(a, begin, end, streamed);
}

void sgd_range(const SgdArguments& a, std::int64_t begin, std::int64_t end, bool streamed) {
  update_range(a, begin, end, streamed);
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(adamw_range);
HWY_EXPORT(sgd_range);

namespace {

// From here on an update's streams are taken to leave the caches before the parameter is used.
constexpr std::int64_t kStreamedNumel = 4 << 20;

// Whether the stores of the 16-bit parameter bypass the caches. Never changes a result.
bool is_streamed(std::int64_t numel, const void* parameter) {
  return numel >= kStreamedNumel && reinterpret_cast<std::uintptr_t>(parameter) % 64 == 0;
}

}  // namespace

void adamw_update(const ComputeContext& context, const AdamWArguments& arguments) {
  const bool streamed = is_streamed(arguments.numel, arguments.parameter);
  parallel_ranges(context.threads, arguments.numel, kElementwiseGrain,
                  [&](std::int64_t begin, std::int64_t end, int) {
                    HWY_DYNAMIC_DISPATCH(adamw_range)(arguments, begin, end, streamed);
                  });
}

void sgd_update(const ComputeContext& context, const SgdArguments& arguments) {
  if (arguments.momentum == nullptr && arguments.coefficients.momentum != 0.0f)
    throw UsageError("sgd_update: momentum is " + std::to_string(arguments.coefficients.momentum) +
                     ", but no momentum buffer is given");
  const bool streamed = is_streamed(arguments.numel, arguments.parameter);
  parallel_ranges(context.threads, arguments.numel, kElementwiseGrain,
                  [&](std::int64_t begin, std::int64_t end, int) {
                    HWY_DYNAMIC_DISPATCH(sgd_range)(arguments, begin, end, streamed);
                  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
