#include "kernels/optimizer.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "hwy/cache_control.h"
#include "kernels/check.h"
#include "kernels/cpu/converted_update.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/parallel.h"
#include "kernels/update_pieces.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/optimizer.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/v16-inl.h"
#include "optim/rules-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// One pass: 16 elements go from gradient to parameter in registers.

// How moments of type Moment are rounded and stored.
template <class Moment>
class Rounding;

template <>
class Rounding<float> {
 public:
  struct Words {};

  explicit Rounding(const MomentRounding&) {}
  static HWY_INLINE Words words(std::int64_t) { return {}; }
  template <int kMoment>
  static HWY_INLINE V16 rounded(V16 moment, const Words&) {
    return moment;
  }
  static HWY_INLINE void put(V16 moment, float* p, std::int64_t lanes) { store_some(moment, p, lanes); }
};

template <>
class Rounding<Bf16> {
 public:
  struct Words {
    WordVector part[kParts];
  };

  explicit Rounding(const MomentRounding& rounding) : rounding_(rounding) {}
  // As rounding_word, of 16 elements.
  HWY_INLINE Words words(std::int64_t i) const {
    const WordTag d;
    const std::int64_t element = rounding_.first + i;
    const auto low = static_cast<std::uint32_t>(element);
    if (HWY_UNLIKELY(low > 0xfffffff0u)) return words_singly(i);
    const WordVector addend = hn::Set(d, rounding_addend(rounding_, element));
    const WordVector key = hn::Set(d, static_cast<std::uint32_t>(rounding_.key));
    Words words;
    for (int part = 0; part < kParts; ++part) {
      const WordVector lane = hn::Iota(d, static_cast<std::uint32_t>(part * kVectorLanes));  // a constant
      WordVector x = hn::Xor(hn::Add(lane, hn::Set(d, low)), key);
      x = hn::Mul(hn::Xor(x, hn::ShiftRight<kRoundingShift0>(x)), hn::Set(d, kRoundingMultiply0));
      x = hn::Add(hn::Xor(x, hn::ShiftRight<kRoundingShift1>(x)), addend);
      x = hn::Mul(x, hn::Set(d, kRoundingMultiply1));
      x = hn::Mul(hn::Xor(x, hn::ShiftRight<kRoundingShift2>(x)), hn::Set(d, kRoundingMultiply2));
      words.part[part] = hn::Xor(x, hn::ShiftRight<kRoundingShift3>(x));
    }
    return words;
  }
  template <int kMoment>  // the first's bits are the lower half of a word, the second's the upper
  static HWY_INLINE V16 rounded(V16 moment, const Words& words) {
    return round(moment, words, [](WordVector word) {
      return kMoment == 0 ? hn::And(word, hn::Set(WordTag(), 0xffffu)) : hn::ShiftRight<16>(word);
    });
  }
  // What is rounded already.
  static HWY_INLINE void put(V16 moment, Bf16* p, std::int64_t lanes) {
    if (HWY_UNLIKELY(lanes < 16)) return store_some(moment, p, lanes);
    auto* halves = reinterpret_cast<std::uint16_t*>(p);
    for (int i = 0; i < kParts; ++i)
      store_halves(hn::BitCast(IntTag(), hn::ShiftRight<16>(hn::BitCast(WordTag(), moment.part[i]))),
                   halves + i * kVectorLanes);
  }

 private:
  HWY_NOINLINE Words words_singly(std::int64_t i) const {
    alignas(64) std::uint32_t each[16];
    for (int k = 0; k < 16; ++k) each[k] = rounding_word(rounding_, i + k);
    Words words;
    for (int part = 0; part < kParts; ++part)
      words.part[part] = hn::Load(WordTag(), each + part * kVectorLanes);
    return words;
  }

  // As round_moment, of 16.
  template <class Half>
  static HWY_INLINE V16 round(V16 x, const Words& words, const Half& half) {
    const WordTag d;
    for (int i = 0; i < kParts; ++i) {
      const WordVector bits = hn::BitCast(d, x.part[i]);
      const auto nan = hn::RebindMask(d, hn::IsNaN(x.part[i]));
      const WordVector rounded =
          hn::IfThenElse(nan, hn::Or(bits, hn::Set(d, 0x400000u)), hn::Add(bits, half(words.part[i])));
      x.part[i] = hn::BitCast(FloatTag(), hn::And(rounded, hn::Set(d, 0xffff0000u)));
    }
    return x;
  }

  MomentRounding rounding_;
};

// A rule's body with what it works on: 16 elements from i on, of which `lanes` are there. What begin() gives
// end() takes.
template <class Coefficients, int kMoments, class Moment>
class Update : public Rounding<Moment> {
 public:
  Update(const OptimizerArguments& a, const Coefficients& coefficients)
      : Rounding<Moment>(a.rounding),
        body_(coefficients),
        scale_(set16(a.gradient_scale)),
        master_(a.master) {
    for (int k = 0; k < kMoments; ++k) moments_[k] = static_cast<Moment*>(a.moments[k]);
  }

  HWY_INLINE V16 begin(V16 gradient, std::int64_t i, std::int64_t lanes) const {
    V16 moments[kMostMoments];
    load_moments(moments, i, lanes);
    const V16 begun = body_.accumulate(mul(gradient, scale_), load_some(master_ + i, lanes), moments);
    if constexpr (kMoments > 0) {
      const auto words = this->words(i);
      moments[0] = this->template rounded<0>(moments[0], words);
      if constexpr (kMoments > 1) moments[1] = this->template rounded<1>(moments[1], words);
      for (int k = 0; k < kMoments; ++k) this->put(moments[k], moments_[k] + i, lanes);
    }
    return body_.prepare(begun, moments);
  }
  HWY_INLINE V16 end(V16 begun, std::int64_t i, std::int64_t lanes) const {
    V16 moments[kMostMoments];
    load_moments(moments, i, lanes);
    const V16 master = body_.step(begun, load_some(master_ + i, lanes), moments);
    store_some(master, master_ + i, lanes);
    return master;
  }

  // Brings 64 elements from i on into the caches.
  HWY_INLINE void fetch(std::int64_t i) const {
    fetch_lines(master_, i);
    for (int k = 0; k < kMoments; ++k) fetch_lines(moments_[k], i);
  }

 private:
  HWY_INLINE void load_moments(V16 (&moments)[kMostMoments], std::int64_t i, std::int64_t lanes) const {
    for (int k = 0; k < kMoments; ++k) moments[k] = load_some(moments_[k] + i, lanes);
  }

  rules::HWY_NAMESPACE::Body<Coefficients, kMoments> body_;
  V16 scale_;
  float* master_;
  Moment* moments_[kMostMoments] = {};
};

struct NoParameter {};  // an fp32 parameter that is its own master

HWY_INLINE void put(V16, NoParameter*, std::int64_t, std::int64_t) {}
template <class T>
HWY_INLINE void put(V16 master, T* parameter, std::int64_t i, std::int64_t lanes) {
  store_some(master, parameter + i, lanes);
}
// `parameter` is only written, so reading its lines into the caches first would be wasted.
HWY_INLINE void put_streamed(V16, V16, NoParameter*, std::int64_t) {}
HWY_INLINE void put_streamed(V16 first, V16 second, float* parameter, std::int64_t i) {
  store16(first, parameter + i);
  store16(second, parameter + i + 16);
}
template <class T>
HWY_INLINE void put_streamed(V16 first, V16 second, T* parameter, std::int64_t i) {
  stream32(first, second, parameter + i);
}

// The elements of a call, and how it goes through memory, which never changes a result.
struct Range {
  std::int64_t begin, end;
  bool streamed;       // stores of the 16-bit parameter bypass the caches
  std::int64_t ahead;  // from the element that is updated to the one that is fetched
};

// 64 elements from i on: begun, and ended.
template <class Rule, class Gradient>
HWY_INLINE void begin64(const Rule& rule, const Gradient* gradient, std::int64_t i, std::int64_t ahead,
                        V16 (&begun)[4]) {
  rule.fetch(i + ahead);
  fetch_lines(gradient, i + ahead);
#pragma GCC unroll 4
  for (int part = 0; part < 4; ++part)
    begun[part] = rule.begin(load16(gradient + i + 16 * part), i + 16 * part, 16);
}
template <class Rule, class Parameter>
HWY_INLINE void end64(const Rule& rule, Parameter* parameter, std::int64_t i, const V16 (&begun)[4]) {
  V16 master[4];
#pragma GCC unroll 4
  for (int part = 0; part < 4; ++part) master[part] = rule.end(begun[part], i + 16 * part, 16);
#pragma GCC unroll 2
  for (int part = 0; part < 4; part += 2)
    put_streamed(master[part], master[part + 1], parameter, i + 16 * part);
}

// `rule` is a copy of its own: nothing that is stored can change it, so that it stays in registers.
template <class Rule, class Gradient, class Parameter>
void update(const Rule rule, const Gradient* gradient, Parameter* parameter, const Range& range) {
  std::int64_t i = range.begin;
  if (range.streamed && i + 64 <= range.end) {
    V16 begun[4];
    if constexpr (kParts == 1) {  // registers suffice to take the roots of 64 while 64 others are divided
      V16 next[4];
      begin64(rule, gradient, i, range.ahead, begun);
      for (; i + 128 <= range.end; i += 64) {
        begin64(rule, gradient, i + 64, range.ahead, next);
        end64(rule, parameter, i, begun);
        for (int part = 0; part < 4; ++part) begun[part] = next[part];
      }
      end64(rule, parameter, i, begun);
      i += 64;
    } else {
      for (; i + 64 <= range.end; i += 64) {
        begin64(rule, gradient, i, range.ahead, begun);
        end64(rule, parameter, i, begun);
      }
    }
    hwy::FlushStream();
  }
  const auto put16 = [&](V16 g, std::int64_t lanes) {
    put(rule.end(rule.begin(g, i, lanes), i, lanes), parameter, i, lanes);
  };
#pragma GCC unroll 4
  for (; i + 16 <= range.end; i += 16) put16(load16(gradient + i), 16);
  if (const std::int64_t lanes = range.end - i; lanes > 0) put16(load_some(gradient + i, lanes), lanes);
}

// Of a gradient in fp32, or in the type of the parameter T.
template <class T, class Rule>
void update_parameter(const Rule& rule, const OptimizerArguments& a, const Range& range) {
  T* const parameter = static_cast<T*>(a.parameter);
  if (a.gradient_type == DType::fp32)
    return update(rule, static_cast<const float*>(a.gradient), parameter, range);
  update(rule, static_cast<const T*>(a.gradient), parameter, range);
}

template <class Rule>
void update_typed(const Rule& rule, const OptimizerArguments& a, const Range& range) {
  if (a.parameter == nullptr || a.parameter_type == DType::fp32) {
    const auto* const gradient = static_cast<const float*>(a.gradient);
    if (a.parameter == nullptr) return update(rule, gradient, static_cast<NoParameter*>(nullptr), range);
    return update(rule, gradient, static_cast<float*>(a.parameter), range);
  }
  if (a.parameter_type == DType::bf16) return update_parameter<Bf16>(rule, a, range);
  update_parameter<Fp16>(rule, a, range);
}

template <class Coefficients, int kMoments>
void update_kept(const OptimizerArguments& a, const Coefficients& c, const Range& range) {
  if constexpr (kMoments > 0)
    if (a.moment_type == DType::bf16)
      return update_typed(Update<Coefficients, kMoments, Bf16>(a, c), a, range);
  update_typed(Update<Coefficients, kMoments, float>(a, c), a, range);
}

void update_range(const OptimizerArguments& a, std::int64_t begin, std::int64_t end, bool streamed,
                  std::int64_t ahead) {
  std::visit(
      [&](const auto& c) {
        using Coefficients = std::decay_t<decltype(c)>;
        with_moments<Coefficients>(a.moment_count, [&](auto count) {
          update_kept<Coefficients, count()>(a, c, {begin, end, streamed, ahead});
        });
      },
      a.coefficients);
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels::cpu {

HWY_EXPORT(update_range);

namespace {

// From here on an update's streams are taken to leave the caches before the parameter is used.
constexpr std::int64_t kStreamedNumel = 1 << 19;
// Elements from the one that is updated to the one that is fetched. The hardware fetches streams by itself,
// but stops at every page, and too late for a square root and a division to hide what the memory takes, or
// the third cache level, where updates of fewer elements than kCachedNumel find what the step before left.
constexpr std::int64_t kAhead = 256, kCachedAhead = 1024, kCachedNumel = 1 << 21;
// The most that a thread takes at a time: long beside what its begin waits for, short beside an update.
constexpr std::int64_t kMostChunk = 1 << 18;

void update(const ComputeContext& context, const OptimizerArguments& arguments) {
  const auto update_range = [](const auto&... a) { HWY_DYNAMIC_DISPATCH(update_range)(a...); };
  const std::int64_t numel = arguments.numel;
  const bool streamed =
      numel >= kStreamedNumel && reinterpret_cast<std::uintptr_t>(arguments.parameter) % 64 == 0;
  parallel_chunks(
      context.threads, numel, kElementwiseGrain, kMostChunk, [&](std::int64_t begin, std::int64_t end) {
        if (!has_pass(arguments)) return update_converted(arguments, begin, end, update_range);
        update_range(arguments, begin, end, streamed, numel < kCachedNumel ? kCachedAhead : kAhead);
      });
}

}  // namespace

void optimizer_update(const ComputeContext& context, const OptimizerArguments& given) {
  OptimizerArguments arguments = given;
  if (given.gate != nullptr) {
    if (given.gate->apply == 0) return;
    arguments.gradient_scale = static_cast<float>(given.gate->gradient_scale);
  }
  each_run(arguments, [&](const OptimizerArguments& run) { update(context, run); });
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
