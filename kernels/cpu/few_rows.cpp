#include "kernels/cpu/few_rows.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/float_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/few_rows.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/tile_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// Two chains for each row, so that a multiply-add does not wait for the one before.
constexpr std::int64_t kChains = 2;

template <int kRows, class T>
HWY_INLINE void dot_rows(const T* a, std::int64_t lda, const T* b, std::int64_t k, float (&out)[kRows]) {
  V16 sums[kRows][kChains];
  for (int row = 0; row < kRows; ++row)
    for (std::int64_t chain = 0; chain < kChains; ++chain) sums[row][chain] = set16(0.0f);
  std::int64_t i = 0;
  for (; i + 16 * kChains <= k; i += 16 * kChains)
    for (std::int64_t chain = 0; chain < kChains; ++chain) {
      const V16 right = load16(b + i + 16 * chain);
      for (int row = 0; row < kRows; ++row)
        sums[row][chain] = multiply_add(load16(a + row * lda + i + 16 * chain), right, sums[row][chain]);
    }
  for (; i < k; i += 16) {
    const V16 right = load_some(b + i, k - i);
    for (int row = 0; row < kRows; ++row)
      sums[row][0] = multiply_add(load_some(a + row * lda + i, k - i), right, sums[row][0]);
  }
  for (int row = 0; row < kRows; ++row) out[row] = sum_lanes(add(sums[row][0], sums[row][1]));
}

// Columns [begin, end) of C.
template <int kRows, class T, class Out>
HWY_INLINE void columns(const MatmulShape& s, const void* a, const void* b, const void* bias, void* c,
                        std::int64_t begin, std::int64_t end) {
  const std::int64_t lda = s.lda > 0 ? s.lda : s.k, ldb = s.ldb > 0 ? s.ldb : s.k,
                     ldc = s.ldc > 0 ? s.ldc : s.n;
  for (std::int64_t j = begin; j < end; ++j) {
    float sums[kRows];
    dot_rows<kRows>(static_cast<const T*>(a), lda, static_cast<const T*>(b) + j * ldb, s.k, sums);
    for (int row = 0; row < kRows; ++row) {
      const float sum = bias == nullptr ? sums[row] : sums[row] + to_float(static_cast<const Out*>(bias)[j]);
      static_cast<Out*>(c)[row * ldc + j] = from_float<Out>(sum);
    }
  }
}

template <int kRows>
HWY_INLINE void columns_of(const MatmulShape& s, const void* a, const void* b, const void* bias, void* c,
                           std::int64_t begin, std::int64_t end) {
  if (s.input_type == DType::fp32) return columns<kRows, float, float>(s, a, b, bias, c, begin, end);
  if (s.output_type == DType::fp32) return columns<kRows, Bf16, float>(s, a, b, bias, c, begin, end);
  columns<kRows, Bf16, Bf16>(s, a, b, bias, c, begin, end);
}

void few_rows_columns(const MatmulShape& s, const void* a, const void* b, const void* bias, void* c,
                      std::int64_t begin, std::int64_t end) {
  switch (s.m) {
    case 1:
      return columns_of<1>(s, a, b, bias, c, begin, end);
    case 2:
      return columns_of<2>(s, a, b, bias, c, begin, end);
    case 3:
      return columns_of<3>(s, a, b, bias, c, begin, end);
    default:
      return columns_of<4>(s, a, b, bias, c, begin, end);
  }
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels::cpu {

HWY_EXPORT(few_rows_columns);

bool takes_few_rows(const MatmulShape& shape) {
  return shape.m <= 4 && shape.transpose_b && !shape.transpose_a && shape.alpha == 1.0f && shape.beta == 0.0f;
}

void few_rows(const ComputeContext& context, const MatmulShape& shape, const void* a, const void* b,
              const void* bias, void* c) {
  check_matmul(shape);
  check_bias(shape, bias);
  const std::int64_t grain = std::max<std::int64_t>(1, kElementwiseGrain / shape.k);
  parallel_chunks(context.threads, shape.n, grain, 16 * grain, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(few_rows_columns)(shape, a, b, bias, c, begin, end);
  });
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
