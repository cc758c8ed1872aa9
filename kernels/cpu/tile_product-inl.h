// Small dense fp32 products for attention's tiles, blocked for registers. Each element is one chain of
// multiply-adds in the order of k, fused where the target has the instruction. Included once per target
// (Highway's foreach_target.h), hence no #pragma once.
#if defined(TESSERA_KERNELS_CPU_TILE_PRODUCT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_TILE_PRODUCT_INL_H
#undef TESSERA_KERNELS_CPU_TILE_PRODUCT_INL_H
#else
#define TESSERA_KERNELS_CPU_TILE_PRODUCT_INL_H
#endif

#include "kernels/cpu/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// A matrix whose element (i, j) is data[i * row + j * column].
struct Strided {
  const float* data;
  std::int64_t row;
  std::int64_t column;
};

HWY_INLINE V16 multiply_add(V16 a, V16 b, V16 c) {
  for (int i = 0; i < kParts; ++i) c.part[i] = hn::MulAdd(a.part[i], b.part[i], c.part[i]);
  return c;
}

// c[kRows, 16 * kWide] += a[kRows, depth] b[depth, 16 * kWide], held in registers over all of depth.
template <int kRows, int kWide>
HWY_INLINE void product_block(std::int64_t depth, Strided a, const float* HWY_RESTRICT b, std::int64_t b_row,
                              float* HWY_RESTRICT c, std::int64_t c_row) {
  V16 sum[kRows][kWide];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < kWide; ++j) sum[i][j] = load16(c + i * c_row + j * 16);
  for (std::int64_t k = 0; k < depth; ++k) {
    V16 right[kWide];
#pragma GCC unroll 8
    for (int j = 0; j < kWide; ++j) right[j] = load16(b + k * b_row + j * 16);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const V16 left = set16(a.data[i * a.row + k * a.column]);
#pragma GCC unroll 8
      for (int j = 0; j < kWide; ++j) sum[i][j] = multiply_add(left, right[j], sum[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < kWide; ++j) store16(sum[i][j], c + i * c_row + j * 16);
}

// Sized so that the sums fill most of the register file: 32 registers of 16 lanes, 16 of 8, or 16 of 4.
constexpr int kBlockRows = kParts == 4 ? 2 : 4;
constexpr int kBlockWide = kParts == 1 ? 4 : 1;

template <int kWide>
HWY_INLINE void product_columns(std::int64_t rows, std::int64_t depth, Strided a, const float* b,
                                std::int64_t b_row, float* c, std::int64_t c_row) {
  std::int64_t row = 0;
  for (; row + kBlockRows <= rows; row += kBlockRows)
    product_block<kBlockRows, kWide>(depth, {a.data + row * a.row, a.row, a.column}, b, b_row,
                                     c + row * c_row, c_row);
  for (; row < rows; ++row)
    product_block<1, kWide>(depth, {a.data + row * a.row, a.row, a.column}, b, b_row, c + row * c_row, c_row);
}

// c[rows, columns] += a[rows, depth] b[depth, columns]; columns is a multiple of 16. Not inlined, because it
// is called from many places and heavily unrolled.
HWY_MAYBE_UNUSED static HWY_NOINLINE void add_product(std::int64_t rows, std::int64_t columns,
                                                      std::int64_t depth, Strided a, const float* b,
                                                      std::int64_t b_row, float* c, std::int64_t c_row) {
  std::int64_t column = 0;
  for (; column + 16 * kBlockWide <= columns; column += 16 * kBlockWide)
    product_columns<kBlockWide>(rows, depth, a, b + column, b_row, c + column, c_row);
  for (; column < columns; column += 16)
    product_columns<1>(rows, depth, a, b + column, b_row, c + column, c_row);
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
