#include "kernels/optimizer.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "hwy/cache_control.h"
#include "kernels/adamw_runs.h"
#include "kernels/check.h"
#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/optimizer.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// One pass: 16 elements go from gradient to parameter in registers.
//
// A rule computes new masters from gradients and keeps its own state:
//   V16 operator()(V16 gradient, std::int64_t i, std::int64_t lanes)
// and fetches the 64 elements of it from i on into the caches:
//   void fetch(std::int64_t i)

// Fetches the cache lines of the 64 elements from i on, each once.
template <class Element>
HWY_INLINE void fetch_lines(const Element* stream, std::int64_t i) {
  constexpr std::int64_t kLine = 64 / sizeof(Element);
#pragma GCC unroll 4
  for (std::int64_t line = 0; line < 64; line += kLine) hwy::Prefetch(stream + i + line);
}

// As adamw_element, operation by operation.
class AdamWRule {
 public:
  explicit AdamWRule(const AdamWArguments& a)
      : master_(a.master),
        m_(a.m),
        v_(a.v),
        scale_(set16(a.coefficients.gradient_scale)),
        l2_(set16(a.coefficients.l2)),
        beta1_(set16(a.coefficients.beta1)),
        one_minus_beta1_(set16(a.coefficients.one_minus_beta1)),
        beta2_(set16(a.coefficients.beta2)),
        one_minus_beta2_(set16(a.coefficients.one_minus_beta2)),
        minus_step_(set16(-a.coefficients.step)),
        denominator_scale_(set16(a.coefficients.denominator_scale)),
        epsilon_(set16(a.coefficients.epsilon)),
        decay_(set16(a.coefficients.decay)) {}

  HWY_INLINE V16 operator()(V16 gradient, std::int64_t i, std::int64_t lanes) const {
    const V16 old = load_some(master_ + i, lanes);
    const V16 g = fma(l2_, old, mul(gradient, scale_));
    const V16 m = fma(beta1_, load_some(m_ + i, lanes), mul(one_minus_beta1_, g));
    const V16 v = fma(beta2_, load_some(v_ + i, lanes), mul(mul(one_minus_beta2_, g), g));
    const V16 denominator = fma(sqrt(v), denominator_scale_, epsilon_);
    const V16 master = fma(minus_step_, div(m, denominator), mul(old, decay_));
    store_some(m, m_ + i, lanes);
    store_some(v, v_ + i, lanes);
    store_some(master, master_ + i, lanes);
    return master;
  }

  HWY_INLINE void fetch(std::int64_t i) const {
    for (const float* stream : {master_, m_, v_}) fetch_lines(stream, i);
  }

 private:
  float *master_, *m_, *v_;
  V16 scale_, l2_, beta1_, one_minus_beta1_, beta2_, one_minus_beta2_;
  V16 minus_step_, denominator_scale_, epsilon_, decay_;
};

// As sgd_element, operation by operation.
class SgdRule {
 public:
  explicit SgdRule(const SgdArguments& a)
      : master_(a.master),
        buffer_(a.momentum),
        scale_(set16(a.coefficients.gradient_scale)),
        weight_decay_(set16(a.coefficients.weight_decay)),
        momentum_(set16(a.coefficients.momentum)),
        minus_rate_(set16(-a.coefficients.learning_rate)),
        nesterov_(a.coefficients.nesterov) {}

  HWY_INLINE V16 operator()(V16 gradient, std::int64_t i, std::int64_t lanes) const {
    const V16 old = load_some(master_ + i, lanes);
    const V16 g = fma(weight_decay_, old, mul(gradient, scale_));
    V16 direction = g;
    if (buffer_ != nullptr) {
      const V16 buffer = fma(momentum_, load_some(buffer_ + i, lanes), g);
      store_some(buffer, buffer_ + i, lanes);
      direction = nesterov_ ? fma(momentum_, buffer, g) : buffer;
    }
    const V16 master = fma(minus_rate_, direction, old);
    store_some(master, master_ + i, lanes);
    return master;
  }

  HWY_INLINE void fetch(std::int64_t i) const {
    for (const float* stream : {master_, buffer_})
      if (stream != nullptr) fetch_lines(stream, i);
  }

 private:
  float *master_, *buffer_;
  V16 scale_, weight_decay_, momentum_, minus_rate_;
  bool nesterov_;
};

struct NoParameter {};  // an fp32 parameter that is its own master

HWY_INLINE void put(V16, NoParameter*, std::int64_t, std::int64_t) {}
template <class T>
HWY_INLINE void put(V16 master, T* parameter, std::int64_t i, std::int64_t lanes) {
  store_some(master, parameter + i, lanes);
}
// `parameter` is only written, so reading its lines into the caches first would be wasted.
HWY_INLINE void put_streamed(V16, NoParameter*, std::int64_t) {}
HWY_INLINE void put_streamed(V16 master, float* parameter, std::int64_t i) { store16(master, parameter + i); }
template <class T>
HWY_INLINE void put_streamed(V16 master, T* parameter, std::int64_t i) {
  stream16(master, parameter + i);
}

// The elements of a call, and how it goes through memory, which never changes a result.
struct Range {
  std::int64_t begin, end;
  bool streamed;       // stores of the 16-bit parameter bypass the caches
  std::int64_t ahead;  // from the element that is updated to the one that is fetched
};

// `rule` is a copy of its own: nothing that is stored can change it, so that it stays in registers.
template <class Rule, class Gradient, class Parameter>
void update(const Rule rule, const Gradient* gradient, Parameter* parameter, const Range& range) {
  std::int64_t i = range.begin;
  if (range.streamed) {
    for (; i + 64 <= range.end; i += 64) {
      rule.fetch(i + range.ahead);
      fetch_lines(gradient, i + range.ahead);
      V16 master[4];
#pragma GCC unroll 4
      for (int part = 0; part < 4; ++part) {
        const std::int64_t j = i + 16 * part;
        master[part] = rule(load16(gradient + j), j, 16);
      }
#pragma GCC unroll 4
      for (int part = 0; part < 4; ++part) put_streamed(master[part], parameter, i + 16 * part);
    }
    hwy::FlushStream();
  }
#pragma GCC unroll 4
  for (; i + 16 <= range.end; i += 16) put(rule(load16(gradient + i), i, 16), parameter, i, 16);
  if (const std::int64_t lanes = range.end - i; lanes > 0)
    put(rule(load_some(gradient + i, lanes), i, lanes), parameter, i, lanes);
}

template <class Rule, class Gradient, class Arguments>
void update_parameter(const Rule& rule, const Gradient* gradient, const Arguments& a, const Range& range) {
  if (a.parameter == nullptr) return update(rule, gradient, static_cast<NoParameter*>(nullptr), range);
  switch (a.parameter_type) {
    case DType::fp32:
      return update(rule, gradient, static_cast<float*>(a.parameter), range);
    case DType::bf16:
      return update(rule, gradient, static_cast<Bf16*>(a.parameter), range);
    case DType::fp16:
      return update(rule, gradient, static_cast<Fp16*>(a.parameter), range);
  }
}

template <class Rule, class Arguments>
void update_range(const Arguments& a, const Range& range) {
  const Rule rule(a);
  switch (a.gradient_type) {
    case DType::fp32:
      return update_parameter(rule, static_cast<const float*>(a.gradient), a, range);
    case DType::bf16:
      return update_parameter(rule, static_cast<const Bf16*>(a.gradient), a, range);
    case DType::fp16:
      return update_parameter(rule, static_cast<const Fp16*>(a.gradient), a, range);
  }
}

void adamw_range(const AdamWArguments& a, std::int64_t begin, std::int64_t end, bool streamed,
                 std::int64_t ahead) {
  update_range<AdamWRule>(a, {begin, end, streamed, ahead});
}

void sgd_range(const SgdArguments& a, std::int64_t begin, std::int64_t end, bool streamed,
               std::int64_t ahead) {
  update_range<SgdRule>(a, {begin, end, streamed, ahead});
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels::cpu {

HWY_EXPORT(adamw_range);
HWY_EXPORT(sgd_range);

namespace {

// From here on an update's streams are taken to leave the caches before the parameter is used.
constexpr std::int64_t kStreamedNumel = 1 << 19;
// Elements from the one that is updated to the one that is fetched. The hardware fetches streams by itself,
// but stops at every page, and too late for a square root and a division to hide what the memory takes, or
// the third cache level, where updates of fewer elements than kCachedNumel find what the step before left.
constexpr std::int64_t kAhead = 512, kCachedAhead = 1024, kCachedNumel = 1 << 21;
// The most that a thread takes at a time: long beside what its begin waits for, short beside an update.
constexpr std::int64_t kMostChunk = 1 << 18;

// The arguments with the gate's scale instead of their own.
template <class Arguments>
Arguments gated(Arguments arguments) {
  if (arguments.gate != nullptr)
    arguments.coefficients.gradient_scale = static_cast<float>(arguments.gate->gradient_scale);
  return arguments;
}

template <class Arguments, class Function>
void update(const ComputeContext& context, const Arguments& given, const Function& update_range) {
  if (given.gate != nullptr && given.gate->apply == 0) return;
  const Arguments arguments = gated(given);
  const std::int64_t numel = arguments.numel;
  const bool streamed =
      numel >= kStreamedNumel && reinterpret_cast<std::uintptr_t>(arguments.parameter) % 64 == 0;
  parallel_chunks(
      context.threads, numel, kElementwiseGrain, kMostChunk, [&](std::int64_t begin, std::int64_t end) {
        update_range(arguments, begin, end, streamed, numel < kCachedNumel ? kCachedAhead : kAhead);
      });
}

}  // namespace

void adamw_update(const ComputeContext& context, const AdamWArguments& given) {
  check_runs(given);
  each_run(given, [&](const AdamWArguments& run) {
    update(context, run, [](const auto&... arguments) { HWY_DYNAMIC_DISPATCH(adamw_range)(arguments...); });
  });
}

void sgd_update(const ComputeContext& context, const SgdArguments& given) {
  check_momentum(given);
  update(context, given, [](const auto&... arguments) { HWY_DYNAMIC_DISPATCH(sgd_range)(arguments...); });
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
