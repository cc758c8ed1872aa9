#include "kernels/rotary.h"

#include <algorithm>
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

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels::cpu {

HWY_EXPORT(rotate_rows);

namespace {

// Row `place` of the table: the cosines of its angles, then their sines.
void fill_table(const ComputeContext& context, const RotaryShape& shape, const float* frequencies,
                float* table) {
  const std::int64_t half = shape.head_channels / 2;
  parallel_ranges(context.threads, shape.sequence, 64, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t place = begin; place < end; ++place)
      for (std::int64_t i = 0; i < half; ++i) {
        const Rotation rotation = rotation_of(shape.first_place + place, frequencies[i]);
        table[place * shape.head_channels + i] = rotation.cosine;
        table[place * shape.head_channels + half + i] = rotation.sine;
      }
  });
}

void rotate(const ComputeContext& context, const RotaryShape& shape, const float* frequencies, bool back,
            void* tensor) {
  const char* op = back ? "rotary_backward" : "rotary_forward";
  check_rotary(shape, op);
  check_workspace(context, rotary_workspace_bytes(shape), op);
  auto* table = static_cast<float*>(context.workspace.data);
  fill_table(context, shape, frequencies, table);
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
