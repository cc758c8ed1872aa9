// fp8 in float64, written from the definitions and not from kernels/fp8_math.h.
#pragma once

#include <cstdint>

#include "tests/kernels/support.h"

namespace tessera::kernels::testing {

// The number that a code of e4m3 stands for, without its sign: codes 0 to 0x7e.
inline double e4m3_magnitude(int code) {
  const int exponent = code / 8, mantissa = code % 8;
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

// The nearest of all; of two that are as near, the one with an even code. -1: NaN.
inline int nearest_e4m3(double value) {
  if (std::isnan(value)) return -1;
  const double magnitude = std::abs(value);
  int low = 0, high = 0x7e;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (e4m3_magnitude(middle) <= magnitude ? low : high) = middle;
  }
  if (magnitude >= 448.0) low = high;
  const double below = magnitude - e4m3_magnitude(low), above = e4m3_magnitude(high) - magnitude;
  const int code = below < above || (below == above && low % 2 == 0) ? low : high;
  return code | (std::signbit(value) ? 0x80 : 0);
}

// The least power of two, from 2^-117 on, by which a tile's elements are 448 at most.
inline double scale_of_tile(double largest) {
  double scale = std::ldexp(1.0, -117);
  while (largest / scale > 448.0) scale *= 2.0;
  return scale;
}

// Where an element of the result lies in the input.
inline std::size_t input_at(const QuantizeShape& s, std::int64_t row, std::int64_t column) {
  const std::int64_t stride = s.stride > 0 ? s.stride : s.transposed ? s.rows : s.columns;
  return static_cast<std::size_t>(s.transposed ? column * stride + row : row * stride + column);
}
inline std::int64_t input_numel(const QuantizeShape& s) {
  const std::int64_t stride = s.stride > 0 ? s.stride : s.transposed ? s.rows : s.columns;
  return stride * (s.transposed ? s.columns : s.rows);
}

// The scale of the tile that begins in that row and column; NaN where it has an element that is not finite.
inline double reference_scale(const QuantizeShape& s, const Doubles& input, std::int64_t row,
                              std::int64_t column) {
  const std::int64_t height = s.tiles == Fp8Tiles::blocks ? 128 : 1;
  double largest = 0.0;
  for (std::int64_t r = row; r < std::min(s.rows, row + height); ++r)
    for (std::int64_t c = column; c < std::min(s.columns, column + 128); ++c) {
      const double magnitude = std::abs(input[input_at(s, r, c)]);
      if (!std::isfinite(magnitude)) return std::nan("");
      largest = std::max(largest, magnitude);
    }
  return scale_of_tile(largest);
}

// Both [rows, columns]: the scale of each element's tile, and its value times that.
struct ReferenceMatrix {
  Doubles scales, numbers;
};

inline ReferenceMatrix reference_of(const QuantizeShape& s, const Doubles& input) {
  const auto numel = static_cast<std::size_t>(s.rows * s.columns);
  ReferenceMatrix result = {Doubles(numel), Doubles(numel)};
  const std::int64_t height = s.tiles == Fp8Tiles::blocks ? 128 : 1;
  for (std::int64_t row = 0; row < s.rows; row += height)
    for (std::int64_t column = 0; column < s.columns; column += 128) {
      const double scale = reference_scale(s, input, row, column);
      for (std::int64_t r = row; r < std::min(s.rows, row + height); ++r)
        for (std::int64_t c = column; c < std::min(s.columns, column + 128); ++c) {
          const int code = std::isnan(scale) ? -1 : nearest_e4m3(input[input_at(s, r, c)] / scale);
          const double magnitude = code < 0 ? std::nan("") : e4m3_magnitude(code & 0x7f) * scale;
          const auto at = static_cast<std::size_t>(r * s.columns + c);
          result.scales[at] = scale;
          result.numbers[at] = code >= 0 && (code & 0x80) != 0 ? -magnitude : magnitude;
        }
    }
  return result;
}

inline Doubles dequantized(const QuantizeShape& s, const Doubles& input) {
  return reference_of(s, input).numbers;
}

// C of matmul_fp8.h, of operands [m,k] and [n,k] with their scales multiplied in. An empty bias is none.
inline Doubles product_of(std::int64_t m, std::int64_t n, std::int64_t k, const Doubles& a, const Doubles& b,
                          const Doubles& bias = {}, const Doubles& added = {}) {
  Doubles c(static_cast<std::size_t>(m * n));
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = bias.empty() ? 0.0 : bias[static_cast<std::size_t>(j)];
      for (std::int64_t x = 0; x < k; ++x)
        sum += a[static_cast<std::size_t>(i * k + x)] * b[static_cast<std::size_t>(j * k + x)];
      const auto at = static_cast<std::size_t>(i * n + j);
      c[at] = sum + (added.empty() ? 0.0 : added[at]);
    }
  return c;
}

}  // namespace tessera::kernels::testing
