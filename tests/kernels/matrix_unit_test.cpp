// The processor's matrix unit against float64, where there is one.
#include "kernels/cpu/matrix_unit.h"

#include "tests/kernels/support.h"

namespace tessera::kernels::testing {
namespace {

using cpu::MatrixUnit;

Doubles reference(const MatrixUnit::Extents& of, const Doubles& a, const Doubles& b, const Doubles& c) {
  Doubles result = c;
  for (std::int64_t i = 0; i < of.m; ++i)
    for (std::int64_t j = 0; j < of.n; ++j)
      for (std::int64_t k = 0; k < of.k; ++k)
        result[static_cast<std::size_t>(i * of.n + j)] +=
            a[static_cast<std::size_t>(i * of.k + k)] * b[static_cast<std::size_t>(k * of.n + j)];
  return result;
}

TEST(MatrixUnit, MatchesFloat64) {
  if (!cpu::has_matrix_unit()) GTEST_SKIP() << "this processor has none";
  for (const MatrixUnit::Extents& of : {MatrixUnit::Extents{32, 32, 32}, MatrixUnit::Extents{64, 64, 64},
                                        MatrixUnit::Extents{64, 96, 32}, MatrixUnit::Extents{128, 64, 160}})
    for (const bool add : {false, true}) {
      Random random(static_cast<std::uint64_t>(of.m + of.n + of.k));
      const Tensor a = random.tensor(DType::bf16, of.m * of.k), b = random.tensor(DType::bf16, of.k * of.n);
      Tensor pairs(DType::bf16, of.k * of.n);
      for (std::int64_t k = 0; k < of.k; ++k)
        for (std::int64_t j = 0; j < of.n; ++j)
          pairs.set((k / 2 * of.n + j) * 2 + k % 2, b.get(k * of.n + j));
      Tensor c = add ? random.tensor(DType::fp32, of.m * of.n) : Tensor(DType::fp32, of.m * of.n);
      const Doubles before = add ? c.doubles() : Doubles(static_cast<std::size_t>(of.m * of.n));
      const MatrixUnit unit;
      unit.multiply(of, static_cast<const Bf16*>(a.data()), static_cast<const Bf16*>(pairs.data()),
                    c.floats(), add);
      expect_close(c, reference(of, a.doubles(), b.doubles(), before), tolerance_of(DType::fp32), "product");
    }
}

TEST(MatrixUnit, IsRefusedWhereThereIsNone) {
  if (cpu::has_matrix_unit()) GTEST_SKIP() << "this processor has one";
  EXPECT_THROW(MatrixUnit(), UnsupportedError);
}

}  // namespace
}  // namespace tessera::kernels::testing
