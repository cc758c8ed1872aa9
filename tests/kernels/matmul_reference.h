// matmul.h in float64.
#pragma once

#include "tests/kernels/support.h"

namespace tessera::kernels::testing {

inline std::int64_t leading(std::int64_t given, bool transposed, std::int64_t rows, std::int64_t columns) {
  return given != 0 ? given : (transposed ? rows : columns);
}

inline double at(const Doubles& data, bool transposed, std::int64_t stride, std::int64_t row,
                 std::int64_t column) {
  return data[static_cast<std::size_t>(transposed ? column * stride + row : row * stride + column)];
}

// C of matmul.h with `bias` or an empty vector.
inline Doubles reference(const MatmulShape& s, const Doubles& a, const Doubles& b, const Doubles& bias,
                         const Doubles& c) {
  const std::int64_t lda = leading(s.lda, s.transpose_a, s.m, s.k);
  const std::int64_t ldb = leading(s.ldb, s.transpose_b, s.k, s.n);
  const std::int64_t ldc = leading(s.ldc, false, s.m, s.n);
  Doubles result = c;
  for (std::int64_t i = 0; i < s.m; ++i)
    for (std::int64_t j = 0; j < s.n; ++j) {
      double sum = 0.0;
      for (std::int64_t k = 0; k < s.k; ++k)
        sum += at(a, s.transpose_a, lda, i, k) * at(b, s.transpose_b, ldb, k, j);
      double& element = result[static_cast<std::size_t>(i * ldc + j)];
      element = s.alpha * sum + (s.beta != 0.0f ? s.beta * element : 0.0) +
                (bias.empty() ? 0.0 : bias[static_cast<std::size_t>(j)]);
    }
  return result;
}

// A product on random numbers, and what it is. Matrices have exactly the rows that are read.
struct RandomProduct {
  explicit RandomProduct(const MatmulShape& shape, std::uint64_t seed)
      : s(shape),
        random(seed),
        a(random.tensor(s.input_type, stored(s.transpose_a, s.m, s.k, s.lda))),
        b(random.tensor(s.input_type, stored(s.transpose_b, s.k, s.n, s.ldb))),
        bias(random.tensor(s.output_type, s.n)),
        c(s.beta == 0.0f ? Tensor(s.output_type, stored(false, s.m, s.n, s.ldc))
                         : random.tensor(s.output_type, stored(false, s.m, s.n, s.ldc))) {}

  // Compares what the op made of `c`, between whose rows nothing may be written.
  void check(const Tensor& result, const std::string& what) const {
    const Doubles expected =
        reference(s, a.doubles(), b.doubles(), s.bias ? bias.doubles() : Doubles{}, c.doubles());
    const std::int64_t ldc = leading(s.ldc, false, s.m, s.n);
    Doubles actual, wanted;
    for (std::int64_t i = 0; i < result.numel(); ++i)
      if (i % ldc < s.n) {
        actual.push_back(result.get(i));
        wanted.push_back(expected[static_cast<std::size_t>(i)]);
      } else if (s.beta == 0.0f) {
        EXPECT_TRUE(std::isnan(result.get(i))) << what << ": written between the rows of C";
      }
    expect_close(actual, wanted, tolerance_of(s.output_type), what);
  }

  static std::int64_t stored(bool transposed, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
    return (transposed ? columns : rows) * leading(stride, transposed, rows, columns);
  }

  MatmulShape s;
  Random random;
  Tensor a, b, bias, c;
};

}  // namespace tessera::kernels::testing
