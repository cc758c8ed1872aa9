// matmul.h and linear.h against float64.
#include <array>

#include "tests/kernels/matmul_reference.h"

namespace tessera::kernels::testing {
namespace {

void check_matmul(const MatmulShape& s, int threads) {
  const RandomProduct product(s, static_cast<std::uint64_t>(s.m * 31 + s.n * 7 + s.k));
  Tensor c = product.c;
  const TestContext context(threads, matmul_workspace_bytes(s, threads));
  matmul(context, s, product.a.data(), product.b.data(), s.bias ? product.bias.data() : nullptr, c.data());
  product.check(c, "matmul");
}

TEST(Matmul, MatchesFloat64) {
  struct Extents {
    std::int64_t m, n, k;
  };
  for (const int threads : kThreadCounts)
    for (const DType type : kComputeTypes)
      for (const Extents e : {Extents{1, 1, 1}, Extents{5, 7, 3}, Extents{33, 65, 17}, Extents{70, 48, 128}})
        for (int flags = 0; flags < 16; ++flags) {
          MatmulShape s = {.m = e.m,
                           .n = e.n,
                           .k = e.k,
                           .transpose_a = (flags & 1) != 0,
                           .transpose_b = (flags & 2) != 0,
                           .input_type = type,
                           .output_type = type,
                           .bias = (flags & 4) != 0,
                           .beta = (flags & 8) != 0 ? 1.0f : 0.0f};
          check_matmul(s, threads);
        }
}

TEST(Matmul, LeadingDimsAndScales) {
  for (const DType type : kComputeTypes)
    for (int flags = 0; flags < 4; ++flags) {
      MatmulShape s = {.m = 19,
                       .n = 33,
                       .k = 21,
                       .transpose_a = (flags & 1) != 0,
                       .transpose_b = (flags & 2) != 0,
                       .lda = 50,
                       .ldb = 61,
                       .ldc = 40,
                       .input_type = type,
                       .output_type = DType::fp32,
                       .alpha = 0.5f,
                       .beta = 2.0f};
      check_matmul(s, 1);
      s.beta = 0.0f;
      check_matmul(s, 2);
    }
}

// Of a length that makes oneDNN copy B, or not, on whichever processor.
TEST(Matmul, RowsThatCollideInTheCache) {
  for (const int threads : kThreadCounts)
    for (const std::int64_t n : {512, 1536})
      for (const bool transpose_a : {false, true})
        for (const float beta : {0.0f, 1.0f})
          check_matmul({.m = 80, .n = n, .k = 37, .transpose_a = transpose_a, .alpha = 0.5f, .beta = beta},
                       threads);
}

// Whose B is copied has the bits of the same product with rows said to be as far apart as they are: of that B
// is read where it lies.
TEST(Matmul, CopyingChangesNoBit) {
  for (const int threads : {1, 2, 16})
    for (const bool transpose_a : {false, true})
      for (const auto& [m, n, k] :
           {std::array<std::int64_t, 3>{96, 1536, 1100}, {64, 1536, 2048}, {600, 512 * 5, 64}}) {
        Random random(5);
        const Tensor a = random.tensor(DType::fp32, m * k), b = random.tensor(DType::fp32, k * n);
        const auto product = [&](std::int64_t ldb) {
          const MatmulShape shape = {.m = m, .n = n, .k = k, .transpose_a = transpose_a, .ldb = ldb};
          const TestContext context(threads, matmul_workspace_bytes(shape, threads));
          Tensor c(DType::fp32, m * n);
          matmul(context, shape, a.data(), b.data(), nullptr, c.data());
          return c;
        };
        EXPECT_TRUE(product(0) == product(n))
            << m << " x " << n << " x " << k << ", " << threads << " threads";
      }
}

TEST(Matmul, RefusesWhatItCannotDo) {
  Tensor t(DType::fp32, 16);
  const TestContext context(1, 1 << 20);
  const MatmulShape good = {.m = 4, .n = 4, .k = 4};
  MatmulShape shape = good;
  shape.input_type = DType::fp16;
  EXPECT_THROW(matmul(context, shape, t.data(), t.data(), nullptr, t.data()), UsageError);
  shape = good;
  shape.output_type = DType::bf16;
  EXPECT_THROW(matmul(context, shape, t.data(), t.data(), nullptr, t.data()), UsageError);
  shape = good;
  shape.lda = 3;
  EXPECT_THROW(matmul(context, shape, t.data(), t.data(), nullptr, t.data()), UsageError);
  shape = good;
  shape.bias = true;
  EXPECT_THROW(matmul(context, shape, t.data(), t.data(), nullptr, t.data()), UsageError);
  shape = good;
  shape.m = 0;
  EXPECT_THROW(matmul(context, shape, t.data(), t.data(), nullptr, t.data()), UsageError);
}

TEST(Matmul, RefusesASmallWorkspace) {
  const MatmulShape shape = {.m = 64, .n = 64, .k = 64, .transpose_a = true, .input_type = DType::bf16};
  const std::int64_t bytes = matmul_workspace_bytes(shape, 1);
  if (bytes == 0) GTEST_SKIP() << "oneDNN needs no workspace here";
  Tensor a(DType::bf16, 64 * 64), b(DType::bf16, 64 * 64), c(DType::fp32, 64 * 64);
  EXPECT_THROW(matmul(TestContext(1, bytes - 64), shape, a.data(), b.data(), nullptr, c.data()), UsageError);
}

// The layer and its gradients as sums; y = x W^T + b.
struct LinearReference {
  LinearShape s;
  Doubles input, weight, bias;

  Doubles forward(const Doubles& x, const Doubles& w, const Doubles& b) const {
    const MatmulShape shape = {.m = s.rows, .n = s.out, .k = s.in, .transpose_b = true};
    return reference(shape, x, w, b, Doubles(static_cast<std::size_t>(s.rows * s.out)));
  }
  Doubles input_gradient(const Doubles& dy) const {
    const MatmulShape shape = {.m = s.rows, .n = s.in, .k = s.out};
    return reference(shape, dy, weight, {}, Doubles(static_cast<std::size_t>(s.rows * s.in)));
  }
  Doubles weight_gradient(const Doubles& dy) const {
    const MatmulShape shape = {.m = s.out, .n = s.in, .k = s.rows, .transpose_a = true};
    return reference(shape, dy, input, {}, Doubles(static_cast<std::size_t>(s.out * s.in)));
  }
  Doubles bias_gradient(const Doubles& dy) const {
    Doubles sums(static_cast<std::size_t>(s.out));
    for (std::size_t i = 0; i < dy.size(); ++i) sums[i % sums.size()] += dy[i];
    return sums;
  }
};

TEST(Linear, ReferenceGradientsMatchFiniteDifferences) {
  Random random(3);
  const LinearShape s = {.rows = 3, .in = 4, .out = 5};
  const LinearReference r = {s, random.tensor(s.type, 12).doubles(), random.tensor(s.type, 20).doubles(),
                             random.tensor(s.type, 5).doubles()};
  const Doubles dy = random.tensor(s.type, 15).doubles();
  expect_close(
      r.input_gradient(dy),
      finite_differences(r.input, [&](const Doubles& x) { return dot(dy, r.forward(x, r.weight, r.bias)); }),
      1e-8, "input gradient");
  expect_close(
      r.weight_gradient(dy),
      finite_differences(r.weight, [&](const Doubles& w) { return dot(dy, r.forward(r.input, w, r.bias)); }),
      1e-8, "weight gradient");
  expect_close(
      r.bias_gradient(dy),
      finite_differences(r.bias, [&](const Doubles& b) { return dot(dy, r.forward(r.input, r.weight, b)); }),
      1e-8, "bias gradient");
}

void check_linear(const LinearShape& s, int threads) {
  Random random(static_cast<std::uint64_t>(s.rows));
  const Tensor x = random.tensor(s.type, s.rows * s.in), w = random.tensor(s.type, s.out * s.in);
  const Tensor b = random.tensor(s.type, s.out), dy = random.tensor(s.type, s.rows * s.out);
  const LinearReference r = {s, x.doubles(), w.doubles(), b.doubles()};
  const TestContext context(threads, linear_workspace_bytes(s, threads));
  const double tolerance = tolerance_of(s.type);

  Tensor y(s.type, s.rows * s.out);
  linear_forward(context, s, x.data(), w.data(), b.data(), y.data());
  expect_close(y, r.forward(r.input, r.weight, r.bias), tolerance, "linear_forward");
  Tensor unbiased(s.type, s.rows * s.out);
  linear_forward(context, s, x.data(), w.data(), nullptr, unbiased.data());
  expect_close(unbiased, r.forward(r.input, r.weight, {}), tolerance, "linear_forward without bias");

  Tensor pre(s.type, s.rows * s.out), activated(s.type, s.rows * s.out), again(s.type, s.rows * s.out);
  linear_gelu_forward(context, s, x.data(), w.data(), b.data(), pre.data(), activated.data());
  EXPECT_TRUE(pre == y);
  gelu_forward(context, s.type, s.rows * s.out, pre.data(), again.data());
  EXPECT_TRUE(activated == again);

  for (const float beta : {0.0f, 1.0f}) {
    const auto start = [&](std::int64_t numel) {
      return beta == 0.0f ? Tensor(s.type, numel) : random.tensor(s.type, numel);
    };
    const auto expected = [&](const Tensor& before, const Doubles& gradient) {
      return beta == 0.0f ? gradient : sum_of(gradient, before.doubles());
    };
    Tensor dx = start(s.rows * s.in), dw = start(s.out * s.in), db = start(s.out);
    const Doubles dx_expected = expected(dx, r.input_gradient(dy.doubles()));
    const Doubles dw_expected = expected(dw, r.weight_gradient(dy.doubles()));
    const Doubles db_expected = expected(db, r.bias_gradient(dy.doubles()));
    linear_backward_input(context, s, dy.data(), w.data(), beta, dx.data());
    linear_backward_weight(context, s, dy.data(), x.data(), beta, dw.data());
    linear_backward_bias(context, s, dy.data(), beta, db.data());
    expect_close(dx, dx_expected, tolerance, "linear_backward_input");
    expect_close(dw, dw_expected, tolerance, "linear_backward_weight");
    expect_close(db, db_expected, tolerance, "linear_backward_bias");
  }
}

TEST(Linear, MatchesFloat64) {
  for (const int threads : kThreadCounts)
    for (const DType type : kComputeTypes)
      for (const LinearShape s : {LinearShape{1, 1, 1, type}, LinearShape{67, 33, 19, type},
                                  LinearShape{130, 64, 150, type}, LinearShape{9, 48, 64, type}})
        check_linear(s, threads);
}

void check_partial(const LinearShape& s, int threads) {
  Random random(static_cast<std::uint64_t>(s.rows + s.in));
  const Tensor x = random.tensor(s.type, s.rows * s.in), w = random.tensor(s.type, s.out * s.in);
  const Tensor dy = random.tensor(s.type, s.rows * s.out);
  const LinearReference r = {s, x.doubles(), w.doubles(), {}};
  const TestContext context(threads, linear_partial_workspace_bytes(s, threads));
  Tensor y(DType::fp32, s.rows * s.out), dx(DType::fp32, s.rows * s.in);
  linear_forward_partial(context, s, x.data(), w.data(), y.floats());
  linear_backward_input_partial(context, s, dy.data(), w.data(), dx.floats());
  // Nothing is rounded to the type.
  expect_close(y, r.forward(r.input, r.weight, {}), tolerance_of(DType::fp32), "linear_forward_partial");
  expect_close(dx, r.input_gradient(dy.doubles()), tolerance_of(DType::fp32),
               "linear_backward_input_partial");
  Tensor dw(DType::fp32, s.out * s.in);
  for (const float beta : {0.0f, 1.0f}) {  // twice the same
    linear_backward_weight_partial(context, s, dy.data(), x.data(), beta, dw.floats());
    Doubles expected = r.weight_gradient(dy.doubles());
    for (double& element : expected) element *= 1 + beta;
    expect_close(dw, expected, tolerance_of(DType::fp32), "linear_backward_weight_partial");
  }
  if (s.type != DType::fp32) return;
  const TestContext whole(threads, linear_workspace_bytes(s, threads));
  Tensor same_y(s.type, y.numel()), same_dx(s.type, dx.numel());
  linear_forward(whole, s, x.data(), w.data(), nullptr, same_y.data());
  linear_backward_input(whole, s, dy.data(), w.data(), 0.0f, same_dx.data());
  EXPECT_TRUE(y == same_y && dx == same_dx);
  Tensor same_dw(s.type, dw.numel());
  for (const float beta : {0.0f, 1.0f})
    linear_backward_weight(whole, s, dy.data(), x.data(), beta, same_dw.data());
  EXPECT_TRUE(dw == same_dw);
}

TEST(Linear, PartialSumsMatchFloat64AndInFp32TheLayersBits) {
  for (const int threads : kThreadCounts)
    for (const DType type : kComputeTypes)
      for (const LinearShape s : {LinearShape{1, 1, 1, type}, LinearShape{67, 33, 19, type},
                                  LinearShape{130, 64, 150, type}, LinearShape{9, 48, 64, type}})
        check_partial(s, threads);
}

// The columns [0, out) of a matrix with `stride` columns. NaN lies between.
Tensor with_gaps(const Tensor& dense, std::int64_t out, std::int64_t stride) {
  Tensor result(dense.type(), dense.numel() / out * stride);
  for (std::int64_t i = 0; i < dense.numel(); ++i) result.set(i / out * stride + i % out, dense.get(i));
  return result;
}

void check_stride(const LinearShape& s, int threads) {
  Random random(4);
  const std::int64_t stride = s.out_stride;
  const Tensor x = random.tensor(s.type, s.rows * s.in), w = random.tensor(s.type, s.out * s.in);
  const Tensor dense = random.tensor(s.type, s.rows * s.out), dy = with_gaps(dense, s.out, stride);
  const LinearReference r = {s, x.doubles(), w.doubles(), {}};
  const TestContext context(
      threads, std::max(linear_workspace_bytes(s, threads), linear_partial_workspace_bytes(s, threads)));
  Tensor y(s.type, s.rows * stride), partial(DType::fp32, s.rows * stride), dx(s.type, s.rows * s.in),
      partial_dx(DType::fp32, s.rows * s.in), dw(s.type, s.out * s.in);
  linear_forward(context, s, x.data(), w.data(), nullptr, y.data());
  linear_forward_partial(context, s, x.data(), w.data(), partial.floats());
  linear_backward_input(context, s, dy.data(), w.data(), 0.0f, dx.data());
  linear_backward_input_partial(context, s, dy.data(), w.data(), partial_dx.floats());
  linear_backward_weight(context, s, dy.data(), x.data(), 0.0f, dw.data());
  const Doubles expected = r.forward(r.input, r.weight, {});
  for (const Tensor& output : {y, partial}) {
    Doubles written;
    for (std::int64_t i = 0; i < output.numel(); ++i)
      if (i % stride < s.out)
        written.push_back(output.get(i));
      else
        EXPECT_TRUE(std::isnan(output.get(i))) << "written between the rows";
    expect_close(written, expected, tolerance_of(output.type()), "output");
  }
  expect_close(dx, r.input_gradient(dense.doubles()), tolerance_of(s.type), "input gradient");
  expect_close(partial_dx, r.input_gradient(dense.doubles()), tolerance_of(DType::fp32), "partial");
  expect_close(dw, r.weight_gradient(dense.doubles()), tolerance_of(s.type), "weight gradient");
}

TEST(Linear, RowsOfTheOutputMayLieApart) {
  for (const int threads : kThreadCounts)
    for (const DType type : kComputeTypes) {
      check_stride({.rows = 67, .in = 33, .out = 19, .type = type, .out_stride = 31}, threads);
      check_stride({.rows = 20, .in = 48, .out = 64, .type = type, .out_stride = 128}, threads);
    }
  const LinearShape s = {.rows = 2, .in = 2, .out = 2, .out_stride = 3};
  const TestContext context(1, linear_workspace_bytes(s, 1));
  Tensor t(s.type, 8);
  EXPECT_THROW(linear_backward_bias(context, s, t.data(), 0.0f, t.data()), UsageError);
  EXPECT_THROW(linear_gelu_forward(context, s, t.data(), t.data(), nullptr, t.data(), t.data()), UsageError);
}

TEST(Linear, BiasGradientDoesNotDependOnThreads) {
  for (const DType type : kComputeTypes) {
    const LinearShape s = {.rows = 1000, .in = 1, .out = 700, .type = type};
    const Tensor dy = Random(5).tensor(type, s.rows * s.out);
    Tensor one(type, s.out), three(type, s.out);
    linear_backward_bias(TestContext(1, linear_workspace_bytes(s, 1)), s, dy.data(), 0.0f, one.data());
    linear_backward_bias(TestContext(3, linear_workspace_bytes(s, 3)), s, dy.data(), 0.0f, three.data());
    EXPECT_TRUE(one == three);
  }
}

// Products of few rows have a kernel of their own (cpu/few_rows.h).
TEST(Matmul, FewRowsMatchFloat64) {
  for (const std::int64_t m : {1, 2, 3, 4})
    for (const std::int64_t k : {1, 15, 16, 33, 64, 100, 2048})
      for (const std::int64_t n : {1, 7, 300})
        for (const auto& [in, out] :
             {std::pair(DType::fp32, DType::fp32), {DType::bf16, DType::bf16}, {DType::bf16, DType::fp32}}) {
          check_matmul({.m = m, .n = n, .k = k, .transpose_b = true, .input_type = in, .output_type = out},
                       1);
          check_matmul({.m = m,
                        .n = n,
                        .k = k,
                        .transpose_b = true,
                        .lda = k + 3,
                        .ldb = k + 5,
                        .ldc = n + 2,
                        .input_type = in,
                        .output_type = out,
                        .bias = true},
                       3);
        }
}

// A row's bits depend neither on the threads nor on the other rows.
TEST(Matmul, FewRowsHaveTheBitsOfOne) {
  for (const DType type : kComputeTypes) {
    const MatmulShape four = {
        .m = 4, .n = 3000, .k = 257, .transpose_b = true, .input_type = type, .output_type = type};
    Random random(9);
    const Tensor a = random.tensor(type, four.m * four.k), b = random.tensor(type, four.n * four.k);
    const auto product = [&](const MatmulShape& shape, int threads, std::int64_t first) {
      Tensor c(type, shape.m * shape.n);
      matmul(TestContext(threads, matmul_workspace_bytes(shape, threads)), shape,
             static_cast<const char*>(a.data()) + first * shape.k * bytes_of(type), b.data(), nullptr,
             c.data());
      return c;
    };
    const Tensor all = product(four, 1, 0);
    EXPECT_TRUE(all == product(four, 3, 0));
    MatmulShape one = four;
    one.m = 1;
    for (std::int64_t row = 0; row < 4; ++row) {
      const Tensor alone = product(one, 2, row);
      for (std::int64_t j = 0; j < one.n; ++j) EXPECT_EQ(alone.get(j), all.get(row * one.n + j));
    }
  }
}

}  // namespace
}  // namespace tessera::kernels::testing
