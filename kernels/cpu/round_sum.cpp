#include "kernels/round_sum.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/round_sum.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

template <class T>
HWY_INLINE void round_row_of(const float* sum, const T* added, T* output, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 16)
    store_some(add(load_some(sum + i, count - i), load_some(added + i, count - i)), output + i, count - i);
}

void round_row(DType type, const float* sum, const void* added, void* output, std::int64_t count) {
  if (type == DType::fp32)
    round_row_of(sum, static_cast<const float*>(added), static_cast<float*>(output), count);
  else
    round_row_of(sum, static_cast<const Bf16*>(added), static_cast<Bf16*>(output), count);
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels::cpu {

HWY_EXPORT(round_row);

void round_sum(const ComputeContext& context, const RoundSumShape& shape, const float* sum, const void* table,
               void* output) {
  const std::int64_t channels = shape.channels;
  const std::int64_t grain =
      std::max<std::int64_t>(kElementwiseGrain / std::max<std::int64_t>(channels, 1), 1);
  parallel_ranges(context.threads, shape.rows, grain, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = begin; row < end; ++row) HWY_DYNAMIC_DISPATCH(round_row)
    (shape.type, sum + row * channels,
     element(table, shape.type, (shape.first_row + row) % shape.table_rows * channels),
     element(output, shape.type, row * channels), channels);
  });
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
