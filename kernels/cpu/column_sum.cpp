#include "kernels/column_sum.h"

#include "kernels/check.h"
#include "kernels/cpu/column_sum.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_groups.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/column_sum.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// partial[columns] = the sum of `rows` rows, in row order.
template <class T>
HWY_INLINE void sum_rows_of(const T* input, std::int64_t rows, std::int64_t columns, float* partial) {
  for (std::int64_t column = 0; column < columns; column += 64) {
    const std::int64_t count = columns - column;
    if (count >= 64) {
      V16 sum[4] = {set16(0.0f), set16(0.0f), set16(0.0f), set16(0.0f)};
      for (std::int64_t row = 0; row < rows; ++row)
        for (int i = 0; i < 4; ++i) sum[i] = add(sum[i], load16(input + row * columns + column + i * 16));
      for (int i = 0; i < 4; ++i) store16(sum[i], partial + column + i * 16);
      continue;
    }
    for (std::int64_t part = 0; part < count; part += 16) {
      V16 sum = set16(0.0f);
      for (std::int64_t row = 0; row < rows; ++row)
        sum = add(sum, load_some(input + row * columns + column + part, count - part));
      store_some(sum, partial + column + part, count - part);
    }
  }
}

template <class T>
HWY_INLINE void add_groups_of(std::int64_t groups, std::int64_t count, std::int64_t stride,
                              const float* partial, float beta, T* sums) {
  for (std::int64_t i = 0; i < count; i += 16) {
    V16 sum = groups > 0 ? load_some(partial + i, count - i) : set16(0.0f);
    for (std::int64_t group = 1; group < groups; ++group)
      sum = add(sum, load_some(partial + group * stride + i, count - i));
    if (beta != 0.0f) sum = add(load_some(sums + i, count - i), sum);
    store_some(sum, sums + i, count - i);
  }
}

void sum_rows(DType type, const void* input, std::int64_t rows, std::int64_t columns, float* partial) {
  if (type == DType::fp32)
    sum_rows_of(static_cast<const float*>(input), rows, columns, partial);
  else
    sum_rows_of(static_cast<const Bf16*>(input), rows, columns, partial);
}

void add_groups(DType type, std::int64_t groups, std::int64_t count, std::int64_t stride,
                const float* partial, float beta, void* sums) {
  if (type == DType::fp32)
    add_groups_of(groups, count, stride, partial, beta, static_cast<float*>(sums));
  else
    add_groups_of(groups, count, stride, partial, beta, static_cast<Bf16*>(sums));
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels::cpu {

HWY_EXPORT(sum_rows);
HWY_EXPORT(add_groups);

void add_row_groups(const ComputeContext& context, std::int64_t groups, std::int64_t columns,
                    std::int64_t stride, const float* partial, float beta, DType type, void* sums) {
  const std::int64_t grain = 256;
  const int threads = groups * columns < kElementwiseGrain ? 1 : context.threads;
  parallel_ranges(threads, columns, grain, [&](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(add_groups)
    (type, groups, end - begin, stride, partial + begin, beta, element(sums, type, begin));
  });
}

std::int64_t column_sum_workspace_bytes(std::int64_t rows, std::int64_t columns, const Target& /*target*/) {
  return workspace_part_bytes(row_groups(rows) * columns * 4);
}

void column_sum(const ComputeContext& context, std::int64_t rows, std::int64_t columns, DType type,
                const void* input, float beta, void* sums) {
  check_workspace(context, cpu::column_sum_workspace_bytes(rows, columns, context.target()), "column_sum");
  auto* partial = static_cast<float*>(context.workspace.data);
  const std::int64_t groups = row_groups(rows);
  parallel_ranges(context.threads, groups, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t group = begin; group < end; ++group) {
      const std::int64_t row = group * kRowsPerGroup;
      HWY_DYNAMIC_DISPATCH(sum_rows)
      (type, element(input, type, row * columns), std::min(kRowsPerGroup, rows - row), columns,
       partial + group * columns);
    }
  });
  add_row_groups(context, groups, columns, columns, partial, beta, type, sums);
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
