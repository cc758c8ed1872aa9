#include "kernels/rotary.h"

#include <algorithm>
#include <numbers>
#include <string>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/rotary_math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rotary.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// The heads of one row, by the row's angles: `half` cosines, then `half` sines.
template <class T>
HWY_INLINE void rotate_row_of(const RotaryShape& shape, const float* angles, bool back, T* row) {
  const std::int64_t half = shape.head_channels / 2;
  for (std::int64_t head = 0; head < shape.heads; ++head) {
    T* first = row + head * shape.head_channels;
    T* second = first + half;
    for (std::int64_t i = 0; i < half; i += 16) {
      const std::int64_t count = half - i;
      const V16 cosine = load_some(angles + i, count);
      V16 sine = load_some(angles + half + i, count);
      if (back) sine = neg(sine);
      const V16 a = load_some(first + i, count);
      const V16 b = load_some(second + i, count);
      store_some(fma(a, cosine, neg(mul(b, sine))), first + i, count);
      store_some(fma(b, cosine, mul(a, sine)), second + i, count);
    }
  }
}

void rotate_rows(const RotaryShape& shape, const float* table, bool back, void* tensor, std::int64_t begin,
                 std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const float* angles = table + row % shape.sequence * shape.head_channels;
    void* data = element(tensor, shape.type, row * shape.row_numel);
    if (shape.type == DType::fp32)
      rotate_row_of(shape, angles, back, static_cast<float*>(data));
    else
      rotate_row_of(shape, angles, back, static_cast<Bf16*>(data));
  }
}

// As many angles as a vector has doubles.
using DoubleTag = hn::CappedTag<double, 8>;
using Doubles = hn::Vec<DoubleTag>;

HWY_INLINE Doubles horner(Doubles sum, Doubles x, double next) {
  return hn::Add(hn::Mul(sum, x), hn::Set(DoubleTag(), next));
}

// rotation_of (rotary_math.h) for a vector of frequencies: its operations, in its order.
HWY_INLINE void store_rotations(float place, const float* frequencies, float* cosines, float* sines) {
  const DoubleTag d;
  const hn::Rebind<float, DoubleTag> df;
  const hn::RebindToUnsigned<DoubleTag> du;
  const auto angle = hn::PromoteTo(d, hn::Mul(hn::Set(df, place), hn::LoadU(df, frequencies)));
  const Doubles magic = hn::Set(d, 0x1.8p52);
  const Doubles shifted = hn::Add(hn::Mul(angle, hn::Set(d, 2.0 / std::numbers::pi)), magic);
  const Doubles quarters = hn::Sub(shifted, magic);
  Doubles r = hn::Sub(angle, hn::Mul(quarters, hn::Set(d, 0x1.921fb544p0)));
  r = hn::Sub(r, hn::Mul(quarters, hn::Set(d, 0x1.0b4611a626331p-34)));
  const Doubles r2 = hn::Mul(r, r);
  Doubles sine = hn::Set(d, 1.0 / 6227020800.0);
  for (const double next : {-1.0 / 39916800.0, 1.0 / 362880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0})
    sine = horner(sine, r2, next);
  sine = hn::Add(hn::Mul(hn::Mul(sine, r2), r), r);
  Doubles cosine = hn::Set(d, 1.0 / 479001600.0);
  for (const double next : {-1.0 / 3628800.0, 1.0 / 40320.0, -1.0 / 720.0, 1.0 / 24.0, -1.0 / 2.0, 1.0})
    cosine = horner(cosine, r2, next);
  // Quarters of a turn, in the low bits: an odd one exchanges the two, and 1 and 2 turn the cosine's sign, 2
  // and 3 the sine's.
  const auto turns = hn::BitCast(du, shifted), one = hn::Set(du, 1), two = hn::Set(du, 2);
  const auto odd = hn::RebindMask(d, hn::Eq(hn::And(turns, one), one));
  const auto sign_of = [&](auto turned) { return hn::BitCast(d, hn::ShiftLeft<62>(hn::And(turned, two))); };
  const Doubles first = hn::IfThenElse(odd, sine, cosine), second = hn::IfThenElse(odd, cosine, sine);
  hn::StoreU(hn::DemoteTo(df, hn::Xor(first, sign_of(hn::Add(turns, one)))), df, cosines);
  hn::StoreU(hn::DemoteTo(df, hn::Xor(second, sign_of(turns))), df, sines);
}

// Rows [begin, end) of the table: the cosines of a place's angles, then their sines.
void fill_rotations(const RotaryShape& shape, const float* frequencies, float* table, std::int64_t begin,
                    std::int64_t end) {
  const std::int64_t half = shape.head_channels / 2;
  constexpr auto kLanes = static_cast<std::int64_t>(hn::MaxLanes(DoubleTag()));
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t place = shape.first_place + row;
    float* const cosines = table + row * shape.head_channels;
    float* const sines = cosines + half;
    std::int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes)
      store_rotations(static_cast<float>(place), frequencies + i, cosines + i, sines + i);
    for (; i < half; ++i) {
      const Rotation rotation = rotation_of(place, frequencies[i]);
      cosines[i] = rotation.cosine;
      sines[i] = rotation.sine;
    }
  }
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels::cpu {

HWY_EXPORT(rotate_rows);
HWY_EXPORT(fill_rotations);

namespace {

void rotate(const ComputeContext& context, const RotaryShape& shape, const float* frequencies, bool back,
            void* tensor) {
  const char* op = back ? "rotary_backward" : "rotary_forward";
  check_rotary(shape, op);
  check_workspace(context, rotary_workspace_bytes(shape), op);
  auto* table = static_cast<float*>(context.workspace.data);
  parallel_ranges(context.threads, shape.sequence, 64, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(fill_rotations)(shape, frequencies, table, begin, end);
  });
  const std::int64_t grain = std::max<std::int64_t>(1, kElementwiseGrain / shape.row_numel);
  parallel_ranges(context.threads, shape.batch * shape.sequence, grain,
                  [&](std::int64_t begin, std::int64_t end, int) {
                    HWY_DYNAMIC_DISPATCH(rotate_rows)(shape, table, back, tensor, begin, end);
                  });
}

}  // namespace

void rotary_forward(const ComputeContext& context, const RotaryShape& shape, const float* frequencies,
                    void* tensor) {
  rotate(context, shape, frequencies, false, tensor);
}

void rotary_backward(const ComputeContext& context, const RotaryShape& shape, const float* frequencies,
                     void* gradient) {
  rotate(context, shape, frequencies, true, gradient);
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
