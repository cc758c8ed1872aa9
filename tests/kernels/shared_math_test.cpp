// The functions of one element that CUDA shares equal the CPU's vector code bit for bit.
#include "kernels/exp_math.h"

#include "kernels/rotary_math.h"
#include "tests/kernels/support.h"

namespace tessera::kernels::testing {
namespace {

constexpr std::int64_t kNumel = 20000;

// Ordinary values, all magnitudes, and the special ones.
Tensor values(std::uint64_t seed) {
  Random random(seed);
  Tensor result(DType::fp32, kNumel);
  for (std::int64_t i = 0; i < kNumel; ++i)
    result.set(i, random.normal() * (i % 2 == 0 ? 4.0 : std::exp(20.0 * random.normal())));
  const double infinity = std::numeric_limits<double>::infinity();
  const double special[] = {0.0,  -0.0, infinity, -infinity, std::nan(""), 1e-45, -1e-45, 88.7,
                            89.0, 90.0, -104.0,   -106.0,    -87.3,        -87.4, -88.7,  -89.0};
  std::int64_t i = 0;
  for (const double value : special) result.set(i++, value);
  return result;
}

// Equal bits; any NaN equals any other.
void expect_same(const Tensor& vector, const Tensor& scalar, const char* what) {
  for (std::int64_t i = 0; i < vector.numel(); ++i) {
    const double a = vector.get(i), b = scalar.get(i);
    ASSERT_TRUE((std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b)))
        << what << " at " << i << ": " << a << ", " << b;
  }
}

TEST(SharedMath, GeluIsTheVectorCodes) {
  const Tensor x = values(1), dy = Random(2).tensor(DType::fp32, kNumel);
  Tensor y(DType::fp32, kNumel), dx(DType::fp32, kNumel), scalar_y = y, scalar_dx = dx;
  gelu_forward(TestContext(1), DType::fp32, kNumel, x.data(), y.data());
  gelu_backward(TestContext(1), DType::fp32, kNumel, x.data(), dy.data(), dx.data());
  for (std::int64_t i = 0; i < kNumel; ++i) {
    const auto value = static_cast<float>(x.get(i));
    scalar_y.floats()[i] = gelu_element(value);
    scalar_dx.floats()[i] = static_cast<float>(dy.get(i)) * gelu_derivative(value);
  }
  expect_same(y, scalar_y, "gelu");
  expect_same(dx, scalar_dx, "its gradient");
}

TEST(SharedMath, SwigluIsTheVectorCodes) {
  const SwigluShape shape = {.rows = 1, .hidden = kNumel / 2};
  const Tensor x = values(3), dy = Random(4).tensor(DType::fp32, shape.hidden);
  Tensor y(DType::fp32, shape.hidden), dx(DType::fp32, kNumel), scalar_y = y, scalar_dx = dx;
  swiglu_forward(TestContext(1), shape, x.data(), y.data());
  swiglu_backward(TestContext(1), shape, x.data(), dy.data(), dx.data());
  for (std::int64_t i = 0; i < shape.hidden; ++i) {
    const auto gate = static_cast<float>(x.get(i)), up = static_cast<float>(x.get(i + shape.hidden));
    scalar_y.floats()[i] = swiglu_element(gate, up);
    const SwigluGradients gradients = swiglu_gradients(gate, up, static_cast<float>(dy.get(i)));
    scalar_dx.floats()[i] = gradients.gate;
    scalar_dx.floats()[i + shape.hidden] = gradients.up;
  }
  expect_same(y, scalar_y, "swiglu");
  expect_same(dx, scalar_dx, "its gradient");
}

TEST(SharedMath, RotationIsTheVectorCodes) {
  for (const std::int64_t half : {5, 8, 37, 64})
    for (const std::int64_t first_place : {0, 1000000}) {
      const RotaryShape shape = {.batch = 1,
                                 .sequence = 50,
                                 .heads = 2,
                                 .head_channels = 2 * half,
                                 .row_numel = 4 * half,
                                 .first_place = first_place};
      const std::vector<float> frequencies = rotary_frequencies(shape.head_channels, 10000.0);
      const Tensor x = Random(5).tensor(DType::fp32, shape.sequence * shape.row_numel);
      for (const bool back : {false, true}) {
        Tensor vector = x, scalar = x;
        const TestContext context(1, rotary_workspace_bytes(shape));
        (back ? rotary_backward : rotary_forward)(context, shape, frequencies.data(), vector.data());
        for (std::int64_t place = 0; place < shape.sequence; ++place)
          for (std::int64_t head = 0; head < shape.heads; ++head)
            for (std::int64_t i = 0; i < half; ++i) {
              float* first = scalar.floats() + place * shape.row_numel + head * shape.head_channels + i;
              rotate_element(rotation_of(first_place + place, frequencies[static_cast<std::size_t>(i)]), back,
                             first[0], first[half]);
            }
        expect_same(vector, scalar, back ? "backward" : "forward");
      }
    }
}

TEST(SharedMath, ExpIsAccurate) {
  double worst = 0.0;
  for (double x = -87.0; x < 88.0; x += 0.0137) {
    const double exact = std::exp(static_cast<double>(static_cast<float>(x)));
    worst = std::max(worst, std::abs(exp_element(static_cast<float>(x)) - exact) / exact);
  }
  EXPECT_LT(worst, 2.5e-7);
  EXPECT_EQ(exp_element(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(exp_element(std::numeric_limits<float>::infinity()), std::numeric_limits<float>::infinity());
}

// Each significand of d, and each approximation of 1 / d that is off by one unit in the last place at most.
TEST(SharedMath, ARefinedReciprocalIsRoundedCorrectly) {
  std::int64_t refined = 0, wrong = 0;
  for (std::int32_t bits = 0x3f800000; bits < 0x40000000; ++bits) {
    const float d = bits_as<float>(bits), quotient = 1.0f / d;
    for (const int off : {-1, 0, 1}) {
      const float approximation = bits_as<float>(bits_as<std::int32_t>(quotient) + off);
      if (std::abs(approximation - 1.0 / static_cast<double>(d)) > 0x1p-24) continue;
      ++refined;
      if (refined_reciprocal(d, approximation) == quotient) continue;
      ++wrong;
      EXPECT_EQ(bits, 0x3fffffff) << d;
      EXPECT_EQ(approximation, 0.5f) << d;
    }
  }
  EXPECT_GT(refined, 1 << 23);
  EXPECT_EQ(wrong, 1);
}

TEST(SharedMath, ReciprocalsAreZeroFromTheSmallestNormalNumberOn) {
  EXPECT_EQ(reciprocal_element(1.0f), 1.0f);
  const float below = std::nextafter(0x1p126f, 0.0f);
  EXPECT_EQ(reciprocal_element(below), 1.0f / below);
  EXPECT_EQ(reciprocal_element(0x1p126f), 0.0f);
  EXPECT_EQ(reciprocal_element(std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_TRUE(std::isnan(reciprocal_element(std::nanf(""))));
}

}  // namespace
}  // namespace tessera::kernels::testing
