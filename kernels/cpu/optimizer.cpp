#include "kernels/optimizer.h"

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

// Where the updated parameter goes besides the master.
struct NoOutput {
  HWY_INLINE void put(V16, std::int64_t, std::int64_t) const {}
};
template <class T>
struct Output {
  T* data;
  HWY_INLINE void put(V16 value, std::int64_t i, std::int64_t count) const {
    store_some(value, data + i, count);
  }
};
// 16-bit types past the caches: the output is only written, so reading its lines first would be wasted.
template <class T>
struct StreamedOutput {
  T* data;
  HWY_INLINE void put(V16 value, std::int64_t i, std::int64_t count) const {
    if (HWY_UNLIKELY(count < 16)) return store_some(value, data + i, count);
    stream16(value, data + i);
  }
};

// As adamw_element, operation by operation.
template <class Gradient, class Parameter>
HWY_INLINE void adamw_of(const AdamWArguments& a, std::int64_t begin, std::int64_t end, Parameter parameter) {
  const AdamWCoefficients& c = a.coefficients;
  const auto* gradients = static_cast<const Gradient*>(a.gradient);
  const V16 scale = set16(c.gradient_scale), l2 = set16(c.l2);
  const V16 beta1 = set16(c.beta1), one_minus_beta1 = set16(c.one_minus_beta1);
  const V16 beta2 = set16(c.beta2), one_minus_beta2 = set16(c.one_minus_beta2);
  const V16 minus_step = set16(-c.step), denominator_scale = set16(c.denominator_scale);
  const V16 epsilon = set16(c.epsilon), decay = set16(c.decay);
  for (std::int64_t i = begin; i < end; i += 16) {
    const std::int64_t count = end - i;
    V16 p = load_some(a.master + i, count);
    const V16 g = fma(l2, p, mul(load_some(gradients + i, count), scale));
    const V16 m = fma(beta1, load_some(a.m + i, count), mul(one_minus_beta1, g));
    const V16 v = fma(beta2, load_some(a.v + i, count), mul(mul(one_minus_beta2, g), g));
    const V16 denominator = fma(sqrt(v), denominator_scale, epsilon);
    p = fma(minus_step, div(m, denominator), mul(p, decay));
    store_some(m, a.m + i, count);
    store_some(v, a.v + i, count);
    store_some(p, a.master + i, count);
    parameter.put(p, i, count);
  }
}

// As sgd_element, operation by operation.
template <class Gradient, class Parameter>
HWY_INLINE void sgd_of(const SgdArguments& a, std::int64_t begin, std::int64_t end, Parameter parameter) {
  const SgdCoefficients& c = a.coefficients;
  const auto* gradients = static_cast<const Gradient*>(a.gradient);
  const V16 scale = set16(c.gradient_scale), weight_decay = set16(c.weight_decay);
  const V16 momentum = set16(c.momentum), minus_rate = set16(-c.learning_rate);
  for (std::int64_t i = begin; i < end; i += 16) {
    const std::int64_t count = end - i;
    V16 p = load_some(a.master + i, count);
    const V16 g = fma(weight_decay, p, mul(load_some(gradients + i, count), scale));
    V16 direction = g;
    if (a.momentum != nullptr) {
      const V16 buffer = fma(momentum, load_some(a.momentum + i, count), g);
      store_some(buffer, a.momentum + i, count);
      direction = c.nesterov ? fma(momentum, buffer, g) : buffer;
    }
    p = fma(minus_rate, direction, p);
    store_some(p, a.master + i, count);
    parameter.put(p, i, count);
  }
}

struct AdamW {
  template <class Gradient, class Parameter>
  static HWY_INLINE void run(const AdamWArguments& a, std::int64_t begin, std::int64_t end,
                             Parameter parameter) {
    adamw_of<Gradient>(a, begin, end, parameter);
  }
};
struct Sgd {
  template <class Gradient, class Parameter>
  static HWY_INLINE void run(const SgdArguments& a, std::int64_t begin, std::int64_t end,
                             Parameter parameter) {
    sgd_of<Gradient>(a, begin, end, parameter);
  }
};

template <class Rule, class Gradient, class T, class Arguments>
HWY_INLINE void run_half(const Arguments& a, std::int64_t begin, std::int64_t end, bool streamed) {
  T* parameter = static_cast<T*>(a.parameter);
  if (streamed)
    Rule::template run<Gradient>(a, begin, end, StreamedOutput<T>{parameter});
  else
    Rule::template run<Gradient>(a, begin, end, Output<T>{parameter});
}

template <class Rule, class Gradient, class Arguments>
HWY_INLINE void run_gradient(const Arguments& a, std::int64_t begin, std::int64_t end, bool streamed) {
  if (a.parameter == nullptr) return Rule::template run<Gradient>(a, begin, end, NoOutput());
  switch (a.parameter_type) {
    case DType::fp32:
      return Rule::template run<Gradient>(a, begin, end, Output<float>{static_cast<float*>(a.parameter)});
    case DType::bf16:
      return run_half<Rule, Gradient, Bf16>(a, begin, end, streamed);
    case DType::fp16:
      return run_half<Rule, Gradient, Fp16>(a, begin, end, streamed);
  }
}

template <class Rule, class Arguments>
HWY_INLINE void run_rule(const Arguments& a, std::int64_t begin, std::int64_t end, bool streamed) {
  switch (a.gradient_type) {
    case DType::fp32:
      return run_gradient<Rule, float>(a, begin, end, streamed);
    case DType::bf16:
      return run_gradient<Rule, Bf16>(a, begin, end, streamed);
    case DType::fp16:
      return run_gradient<Rule, Fp16>(a, begin, end, streamed);
  }
}

void adamw_range(const AdamWArguments& a, std::int64_t begin, std::int64_t end, bool streamed) {
  run_rule<AdamW>(a, begin, end, streamed);
  if (streamed) hwy::FlushStream();
}

void sgd_range(const SgdArguments& a, std::int64_t begin, std::int64_t end, bool streamed) {
  run_rule<Sgd>(a, begin, end, streamed);
  if (streamed) hwy::FlushStream();
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
