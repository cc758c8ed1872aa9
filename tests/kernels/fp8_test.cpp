// quantize.h, matmul_fp8.h and layers in fp8 against float64 of the same rounding.
#include <tuple>

#include "tests/kernels/fp8_reference.h"
#include "tests/kernels/instruction_sets.h"
#include "tests/refusal.h"

namespace tessera::kernels::testing {
namespace {

using tessera::testing::expect_words;
using tessera::testing::refusal;

constexpr Fp8Tiles kTiles[] = {Fp8Tiles::vectors, Fp8Tiles::blocks};

// A matrix in fp8 in memory of exactly its bytes, poisoned.
struct Quantized {
  std::vector<std::uint8_t> values;
  std::vector<float> scales;

  explicit Quantized(const QuantizeShape& s)
      : values(static_cast<std::size_t>(s.rows * s.columns), 0xff),
        scales(static_cast<std::size_t>(s.scale_numel()), std::nanf("")) {}
  Quantized(const QuantizeShape& s, const Tensor& input, int threads = 1) : Quantized(s) {
    quantize(TestContext(threads), s, input.data(), values.data(), scales.data());
  }
  Fp8Matrix matrix() const { return {values.data(), scales.data()}; }
  bool same_bytes(const Quantized& other) const {
    return values == other.values &&
           std::memcmp(scales.data(), other.scales.data(), scales.size() * sizeof(float)) == 0;
  }
};

// Of magnitudes that differ from tile to tile, and within.
Tensor wide(Random& random, std::int64_t numel) {
  Tensor tensor = random.tensor(DType::bf16, numel);
  for (std::int64_t i = 0; i < numel; ++i)
    tensor.set(i, tensor.get(i) * std::exp(3.0 * random.normal()) *
                      std::exp2(static_cast<double>(i / 64 % 40) - 20));
  return tensor;
}

// Every element, and every scale.
void expect_reference(const QuantizeShape& s, const Tensor& input, const Quantized& result) {
  const ReferenceMatrix expected = reference_of(s, input.doubles());
  for (std::int64_t row = 0; row < s.rows; ++row)
    for (std::int64_t column = 0; column < s.columns; ++column) {
      const auto at = static_cast<std::size_t>(row * s.columns + column);
      const auto scale =
          static_cast<double>(result.scales[static_cast<std::size_t>(s.scale_at(row, column))]);
      const double value = static_cast<double>(to_float(E4m3{result.values[at]})) * scale;
      const double wanted = expected.scales[at], number = expected.numbers[at];
      ASSERT_EQ(scale, std::isnan(wanted) ? 1.0 : wanted) << row << ", " << column;
      ASSERT_TRUE(value == number || (std::isnan(value) && std::isnan(number)))
          << row << ", " << column << ": " << value << ", " << number;
      ASSERT_TRUE(std::isnan(number) || std::signbit(value) == std::signbit(number));
    }
}

std::vector<QuantizeShape> shapes() {
  std::vector<QuantizeShape> all;
  for (const auto& [rows, columns] : {std::pair(16, 16), {128, 128}, {144, 272}, {400, 112}, {32, 656}})
    for (const bool transposed : {false, true})
      for (const std::int64_t gap : {0, 48})
        for (const Fp8Tiles tiles : kTiles)
          all.push_back({.rows = rows,
                         .columns = columns,
                         .transposed = transposed,
                         .stride = gap > 0 ? (transposed ? rows : columns) + gap : 0,
                         .tiles = tiles});
  return all;
}

TEST(Quantize, IsTheReferencesRounding) {
  Random random(1);
  for (const QuantizeShape& s : shapes()) {
    const Tensor input = wide(random, input_numel(s));
    const Quantized result(s, input);
    ASSERT_NO_FATAL_FAILURE(expect_reference(s, input, result));
    EXPECT_TRUE(s.rows != 400 || result.same_bytes(Quantized(s, input, 2))) << "by two threads";
  }
}

TEST(Quantize, HasItsBitsWithEveryInstructionSet) {
  Random random(2);
  for (const QuantizeShape& s : shapes()) {
    const Tensor input = wide(random, input_numel(s));
    const Quantized expected(s, input);
    for_each_instruction_set(
        [&](const char* name) { EXPECT_TRUE(Quantized(s, input).same_bytes(expected)) << name; });
  }
}

// Tiles of zeros, of the least and largest numbers, and with numbers that are not finite, of which each
// spoils its own tile and no other.
TEST(Quantize, OfSpecialTiles) {
  const double most = std::ldexp(255.0, 120);  // the largest bf16 number
  const double special[] = {-0.0,
                            std::ldexp(1.0, -133),
                            std::ldexp(1.5, -120),
                            std::ldexp(1.0, -117),
                            most,
                            -std::numeric_limits<double>::infinity(),
                            std::nan("")};
  for (QuantizeShape s : shapes()) {
    if (s.columns < 144) continue;
    for (const double value : special) {
      Tensor input(DType::bf16, Doubles(static_cast<std::size_t>(input_numel(s)), 0.0));
      input.set(static_cast<std::int64_t>(input_at(s, 3, 130)), value);
      input.set(static_cast<std::int64_t>(input_at(s, 3, 131)), value / 3);
      input.set(static_cast<std::int64_t>(input_at(s, 2, 5)), 1.0);
      ASSERT_NO_FATAL_FAILURE(expect_reference(s, input, Quantized(s, input)));
    }
  }
}

TEST(Quantize, RefusesWhatCublasLtDoesNotTake) {
  const auto refused = [](const QuantizeShape& s) {
    return refusal([&] { quantize(TestContext(1), s, nullptr, nullptr, nullptr); });
  };
  expect_words(refused({.rows = 24, .columns = 16}), {"quantize: rows is 24", "multiple of 16"});
  expect_words(refused({.rows = 16, .columns = 0}), {"columns is 0"});
  expect_words(refused({.rows = 16, .columns = 32, .stride = 40}), {"stride is 40"});
  expect_words(refused({.rows = 32, .columns = 16, .transposed = true, .stride = 16}),
               {"stride is 16, at least 32"});
}

// --- Products ----------------------------------------------------------------------------------------------

struct ProductCase {
  std::int64_t m, n, k;
};
constexpr ProductCase kProducts[] = {{16, 16, 16}, {144, 48, 272}, {64, 304, 128}, {32, 160, 400}};

TEST(MatmulFp8, IsTheSumOfTheReferencesNumbers) {
  Random random(3);
  for (const ProductCase& of : kProducts)
    for (const Fp8Tiles tiles : kTiles)
      for (const DType type : kComputeTypes)
        for (const auto& [bias, beta, gap] :
             {std::tuple(false, 0.0f, 0), {true, 0.0f, 32}, {false, 1.0f, 16}}) {
          if (bias && type == DType::fp32) continue;
          const QuantizeShape left = {.rows = of.m, .columns = of.k};
          const QuantizeShape right = {.rows = of.n, .columns = of.k, .tiles = tiles};
          const Tensor a = random.tensor(DType::bf16, of.m * of.k),
                       b = random.tensor(DType::bf16, of.n * of.k);
          const Tensor added = random.tensor(DType::bf16, of.n), before = random.tensor(type, of.m * of.n);
          const MatmulFp8Shape s = {.m = of.m,
                                    .n = of.n,
                                    .k = of.k,
                                    .b_tiles = tiles,
                                    .ldc = gap > 0 ? of.n + gap : 0,
                                    .output_type = type,
                                    .bias = bias,
                                    .beta = beta};
          const std::int64_t ldc = of.n + gap;
          Tensor c(type, of.m * ldc);
          for (std::int64_t i = 0; beta != 0.0f && i < of.m * of.n; ++i)
            c.set(i / of.n * ldc + i % of.n, before.get(i));
          const Quantized x(left, a), y(right, b);
          matmul_fp8(TestContext(1, matmul_fp8_workspace_bytes(s, 1)), s, x.matrix(), y.matrix(),
                     bias ? added.data() : nullptr, c.data());
          Doubles actual;
          for (std::int64_t i = 0; i < of.m * ldc; ++i)
            if (i % ldc < of.n)
              actual.push_back(c.get(i));
            else
              EXPECT_TRUE(std::isnan(c.get(i))) << "between the rows of C nothing may be written";
          expect_close(
              actual,
              product_of(of.m, of.n, of.k, dequantized(left, a.doubles()), dequantized(right, b.doubles()),
                         bias ? added.doubles() : Doubles{}, beta != 0.0f ? before.doubles() : Doubles{}),
              tolerance_of(type), "matmul_fp8");
        }
}

// A tile that is not finite makes the rows of the product that it is in NaN, and leaves the others.
TEST(MatmulFp8, TellsOfInfinities) {
  const QuantizeShape left = {.rows = 32, .columns = 272}, right = {.rows = 16, .columns = 272};
  Random random(4);
  Tensor a = random.tensor(DType::bf16, 32 * 272), b = random.tensor(DType::bf16, 16 * 272);
  a.set(5 * 272 + 200, std::numeric_limits<double>::infinity());
  Tensor c(DType::fp32, 32 * 16);
  const MatmulFp8Shape s = {
      .m = 32, .n = 16, .k = 272, .b_tiles = Fp8Tiles::vectors, .output_type = DType::fp32};
  const Quantized x(left, a), y(right, b);
  matmul_fp8(TestContext(1, matmul_fp8_workspace_bytes(s, 1)), s, x.matrix(), y.matrix(), nullptr, c.data());
  for (std::int64_t i = 0; i < c.numel(); ++i) EXPECT_EQ(std::isnan(c.get(i)), i / 16 == 5) << i;
}

TEST(MatmulFp8, RefusesShapes) {
  const auto refused = [](const MatmulFp8Shape& s) {
    return refusal([&] { matmul_fp8_workspace_bytes(s, 1); });
  };
  expect_words(refused({.m = 8, .n = 16, .k = 16}), {"fp8", "m is 8", "multiple of 16"});
  expect_words(refused({.m = 16, .n = 16, .k = 16, .ldc = 8}), {"ldc is 8"});
  expect_words(refused({.m = 16, .n = 32, .k = 16, .ldc = 16}), {"ldc is 16, at least 32"});
  expect_words(refused({.m = 16, .n = 16, .k = 16, .output_type = DType::fp32, .bias = true}),
               {"a bias needs a bf16 output"});
  expect_words(refused({.m = 16, .n = 16, .k = 16, .output_type = DType::fp16}), {"use bf16 or fp32"});
  const MatmulShape fp32 = {.m = 16, .n = 16, .k = 16};
  expect_words(refusal([&] { quantized_matmul_workspace_bytes(fp32, Fp8Tiles::blocks, 1); }), {"are bf16"});
}

// --- Layers ------------------------------------------------------------------------------------------------

struct Layer {
  LinearShape shape;
  Tensor input, weight, bias, gradient;

  explicit Layer(std::int64_t rows, std::int64_t in, std::int64_t out)
      : shape{.rows = rows, .in = in, .out = out, .type = DType::bf16, .fp8 = true},
        input(Random(5).tensor(DType::bf16, rows * in)),
        weight(Random(6).tensor(DType::bf16, in * out, 0.02)),
        bias(Random(7).tensor(DType::bf16, out)),
        gradient(Random(8).tensor(DType::bf16, rows * out, 1e-4)) {}
};

// As dequantized() makes it of one operand.
Doubles rounded(const Tensor& of, const QuantizeShape& shape) { return dequantized(shape, of.doubles()); }

// Each product rounds its two operands along what it sums over; a weight has the same values in both of its.
TEST(LinearFp8, ProductsAreTheReferences) {
  for (const auto& [rows, in, out] : {std::tuple(48, 144, 272), {144, 384, 128}}) {
    const Layer layer(rows, in, out);
    const LinearShape& s = layer.shape;
    const TestContext context(2, linear_workspace_bytes(s, 2)),
        partial(2, linear_partial_workspace_bytes(s, 2));
    const QuantizeShape of_weight = {.rows = out, .columns = in, .tiles = Fp8Tiles::blocks};
    const Doubles x = rounded(layer.input, {.rows = rows, .columns = in}),
                  w = rounded(layer.weight, of_weight);
    Tensor output(DType::bf16, rows * out), sum(DType::fp32, rows * out);
    linear_forward(context, s, layer.input.data(), layer.weight.data(), layer.bias.data(), output.data());
    linear_forward_partial(partial, s, layer.input.data(), layer.weight.data(), sum.floats());
    expect_close(output, product_of(rows, out, in, x, w, layer.bias.doubles()), 0.025, "forward");
    expect_close(sum, product_of(rows, out, in, x, w), 2e-5, "forward in fp32");

    const Doubles y = rounded(layer.gradient, {.rows = rows, .columns = out});
    const Doubles turned =
        rounded(layer.weight, {.rows = in, .columns = out, .transposed = true, .tiles = Fp8Tiles::blocks});
    for (std::int64_t i = 0; i < in * out; ++i)
      ASSERT_EQ(turned[static_cast<std::size_t>(i % in * out + i / in)], w[static_cast<std::size_t>(i)]);
    Tensor of_input(DType::bf16, rows * in), of_input_sum(DType::fp32, rows * in);
    linear_backward_input(context, s, layer.gradient.data(), layer.weight.data(), 0.0f, of_input.data());
    linear_backward_input_partial(partial, s, layer.gradient.data(), layer.weight.data(),
                                  of_input_sum.floats());
    expect_close(of_input, product_of(rows, in, out, y, turned), 0.025, "gradient of the input");
    expect_close(of_input_sum, product_of(rows, in, out, y, turned), 2e-5, "the same in fp32");

    const Doubles columns = rounded(layer.gradient, {.rows = out, .columns = rows, .transposed = true});
    const Doubles inputs = rounded(layer.input, {.rows = in, .columns = rows, .transposed = true});
    const Tensor before = Random(9).tensor(DType::bf16, in * out, 1e-3);
    for (const float beta : {0.0f, 1.0f}) {
      Tensor of_weight_gradient = beta == 0.0f ? Tensor(DType::bf16, in * out) : before;
      linear_backward_weight(context, s, layer.gradient.data(), layer.input.data(), beta,
                             of_weight_gradient.data());
      expect_close(
          of_weight_gradient,
          product_of(out, in, rows, columns, inputs, {}, beta == 0.0f ? Doubles{} : before.doubles()), 0.025,
          "gradient of the weight");
    }
  }
}

// The rounding is of e4m3: a relative error of 2^-4 at most in each operand's elements, at random.
TEST(LinearFp8, IsNearBf16) {
  const Layer layer(256, 384, 256);
  LinearShape bf16 = layer.shape;
  bf16.fp8 = false;
  Tensor near(DType::fp32, 256 * 256), exact(DType::fp32, 256 * 256);
  for (const auto& [shape, result] : {std::pair(&layer.shape, &near), {&bf16, &exact}})
    linear_forward_partial(TestContext(1, linear_partial_workspace_bytes(*shape, 1)), *shape,
                           layer.input.data(), layer.weight.data(), result->floats());
  double squares = 0, error = 0;
  for (std::int64_t i = 0; i < exact.numel(); ++i) {
    squares += exact.get(i) * exact.get(i);
    error += (near.get(i) - exact.get(i)) * (near.get(i) - exact.get(i));
  }
  const double relative = std::sqrt(error / squares);
  EXPECT_LT(relative, 0.05);
  EXPECT_GT(relative, 0.01) << "nothing was rounded";
}

}  // namespace
}  // namespace tessera::kernels::testing
