#include "kernels/dropout.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/dropout.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/dropout-inl.h"
#include "kernels/cpu/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

template <class T>
HWY_INLINE void dropout_row_of(const Dropout& dropout, const DrawnRow& at, const T* input, T* output,
                               std::int64_t channels) {
  constexpr std::int64_t kDrawn = 128;
  const V16 scale = set16(dropout.scale());
  for (std::int64_t first = 0; first < channels; first += kDrawn) {
    alignas(64) std::uint16_t halves[kDrawn];
    draw_halves<1>(dropout, at, static_cast<std::uint32_t>(first / 8), halves);
    const std::int64_t end = std::min(channels, first + kDrawn);
    for (std::int64_t i = first; i < end; i += 16) {
      const V16 x = mul(load_some(input + i, end - i), scale);
      store_some(keep16(x, halves + (i - first), dropout.threshold), output + i, end - i);
    }
  }
}

void dropout_row(DType type, const Dropout& dropout, const DrawnRow& at, const void* input, void* output,
                 std::int64_t channels) {
  if (type == DType::fp32)
    dropout_row_of(dropout, at, static_cast<const float*>(input), static_cast<float*>(output), channels);
  else
    dropout_row_of(dropout, at, static_cast<const Bf16*>(input), static_cast<Bf16*>(output), channels);
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels::cpu {

HWY_EXPORT(dropout_row);

void dropout(const ComputeContext& context, const DropoutShape& shape, const Dropout& dropout,
             const void* input, void* output) {
  const std::int64_t channels = shape.channels;
  const std::int64_t grain = std::max<std::int64_t>(kElementwiseGrain / channels, 1);
  parallel_ranges(
      context.threads, shape.rows_or_all(), grain, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t row = begin; row < end; ++row) HWY_DYNAMIC_DISPATCH(dropout_row)
        (shape.type, dropout,
         {.sequence = static_cast<std::uint32_t>((shape.first_row + row) / shape.sequence),
          .matrix = 0,
          .row = static_cast<std::uint32_t>((shape.first_row + row) % shape.sequence)},
         element(input, shape.type, row * channels), element(output, shape.type, row * channels), channels);
      });
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
