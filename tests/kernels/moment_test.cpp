// Updates of moments in bf16, to the bit: against the inline functions of one element, and the rounding and
// its random bits written out again.
#include <cmath>

#include "kernels/moment_math.h"
#include "tessera/philox.h"
#include "tests/kernels/instruction_sets.h"
#include "tests/kernels/scalar_update.h"
#include "tests/kernels/support.h"

namespace tessera::kernels::testing {
namespace {

// Written out as moment_math.h describes it.
std::uint32_t random_word(const MomentRounding& rounding, std::int64_t i) {
  const auto element = static_cast<std::uint64_t>(rounding.first + i);
  auto x = static_cast<std::uint32_t>(element ^ (rounding.key & 0xffffffffu));
  x ^= x >> 17;
  x *= 0xed5ad4bbu;
  x ^= x >> 11;
  x += static_cast<std::uint32_t>((rounding.key >> 32) + (element >> 32) * 0x9e3779b9u);
  x *= 0xac4c1b51u;
  x ^= x >> 15;
  x *= 0x31848babu;
  return x ^ (x >> 14);
}

// The value of bf16 below |x| or above it: above where the bits that are cut off and `random` carry.
float rounded(float x, std::uint32_t random) {
  if (std::isnan(x)) return x;
  const auto bits = bits_as<std::uint32_t>(x);
  const std::uint32_t below = bits & 0xffff0000u;
  return bits_as<float>((bits & 0xffffu) + random > 0xffffu ? below + 0x10000u : below);
}

State random_state(DType parameter_type, std::int64_t numel) {
  Random random(static_cast<std::uint64_t>(numel) + 1);
  State s = {random.tensor(DType::fp32, numel), random.tensor(DType::bf16, numel, 0.1),
             Tensor(DType::bf16, numel), Tensor(parameter_type, numel)};
  for (std::int64_t i = 0; i < numel; ++i) s.v.set(i, std::pow(random.normal(), 2) * 0.01);
  return s;
}

const UpdateCase kAdamW = {.options = AdamWOptions{},
                           .terms = {.learning_rate = 3e-3, .weight_decay = 0.1, .step = 3},
                           .gradient_scale = 0.37f};
const UpdateCase kSgd = {.options = SgdOptions{.momentum = 0.9, .nesterov = true},
                         .terms = {.learning_rate = 0.1, .weight_decay = 0.01},
                         .gradient_scale = 0.37f};

const UpdateCase kLion = {
    .options = LionOptions{}, .terms = {.learning_rate = 0.01, .weight_decay = 0.1}, .gradient_scale = 0.37f};

void scalar_bf16(const UpdateCase& update, const Tensor& gradient, const MomentRounding& rounding, State& s) {
  scalar_update(update, gradient, s, [&](float moment, int k, std::int64_t i) {
    return rounded(moment, random_word(rounding, i) >> (16 * k) & 0xffffu);
  });
}

OptimizerArguments arguments_of(const UpdateCase& update, const Tensor& gradient,
                                const MomentRounding& rounding, State& s) {
  OptimizerArguments arguments = update.arguments(gradient, s);
  arguments.rounding = rounding;
  return arguments;
}

// Some where an element's number passes 2^32 within a vector, and beyond.
constexpr std::int64_t kFirsts[] = {0, 7, (std::int64_t{1} << 32) - 20, std::int64_t{1} << 36};

TEST(Bf16Moments, EqualTheScalarFunctionsBitForBit) {
  for_each_instruction_set([](const char* name) {
    for (const std::int64_t first : kFirsts)
      for (const std::int64_t numel : {1, 15, 16, 63, 64, 65, 200, 1003, 40001})
        for (const DType type : kAllTypes)
          for (const int threads : {1, std::min(4, kMostThreads)}) {
            const MomentRounding rounding = {.key = 0x0123456789abcdef, .first = first};
            const Tensor gradient = Random(9).tensor(numel % 2 == 0 ? DType::bf16 : type, numel);
            State scalar = random_state(type, numel), vector = scalar;
            for (const UpdateCase& update : {kAdamW, kSgd, kLion}) {
              scalar_bf16(update, gradient, rounding, scalar);
              optimizer_update(TestContext(threads), arguments_of(update, gradient, rounding, vector));
              ASSERT_TRUE(scalar == vector)
                  << name << " rule " << update.options.index() << " " << numel << " from " << first;
            }
          }
  });
}

// From so many elements on the parameter is stored past the caches.
TEST(Bf16Moments, StreamedUpdatesHaveTheSameBits) {
  for (const std::int64_t rest : {0, 37}) {
    const std::int64_t numel = (1 << 19) + rest;
    const MomentRounding rounding = {.key = 5, .first = 128};
    const Tensor gradient = Random(9).tensor(DType::bf16, numel);
    State scalar = random_state(DType::fp32, numel);
    const State before = scalar;
    scalar_bf16(kAdamW, gradient, rounding, scalar);
    for_each_instruction_set([&](const char* name) {
      State vector = before;
      Aligned parameter(DType::fp32, numel);
      OptimizerArguments arguments = arguments_of(kAdamW, gradient, rounding, vector);
      arguments.parameter = parameter.data();
      optimizer_update(TestContext(2), arguments);
      parameter.copy_to(vector.parameter);
      EXPECT_TRUE(scalar == vector) << name << " " << rest;
    });
  }
}

// By a beta2 of 0.999 most steps change v by less than bf16 can tell: rounded to the nearest it would stay.
TEST(Bf16Moments, KeepTheirExpectation) {
  const std::int64_t numel = 20000;
  State s = random_state(DType::fp32, numel);
  for (std::int64_t i = 0; i < numel; ++i) s.v.set(i, 1.0);
  const Tensor nothing(DType::fp32, Doubles(static_cast<std::size_t>(numel), 0.0));
  for (std::uint64_t step = 0; step < 1000; ++step)
    optimizer_update(TestContext(1), arguments_of(kAdamW, nothing, {.key = random_key(1, 2, step)}, s));
  double sum = 0.0, least = 1.0, most = 0.0;
  for (std::int64_t i = 0; i < numel; ++i) {
    sum += s.v.get(i);
    least = std::min(least, s.v.get(i));
    most = std::max(most, s.v.get(i));
  }
  EXPECT_NEAR(sum / static_cast<double>(numel), std::pow(0.999, 1000), 0.002);
  EXPECT_GT(least, 0.15);
  EXPECT_LT(most, 0.65);
}

// Both halves are spread evenly over consecutive elements, and have nothing to do with each other, with the
// next element's or the next step's.
TEST(Bf16Moments, RandomBitsAreSpreadEvenly) {
  constexpr int kCount = 1 << 16;
  for (const std::uint64_t key : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{0x0123456789abcdef}}) {
    int low[16] = {}, high[16] = {}, pairs[5][16] = {};
    for (std::int64_t i = 0; i < kCount; ++i) {
      const std::uint32_t word = rounding_word({.key = key}, i);
      const std::uint32_t others[] = {
          word >> 16, rounding_word({.key = key}, i + 1), rounding_word({.key = key}, i + 768),
          rounding_word({.key = key + 1}, i), rounding_word({.key = key + (std::uint64_t{1} << 32)}, i)};
      ++low[word >> 12 & 15];
      ++high[word >> 28];
      for (int k = 0; k < 5; ++k) ++pairs[k][(word >> 14 & 3) << 2 | (others[k] >> 14 & 3)];
    }
    const auto expect_even = [&](const int(&counts)[16], const char* what) {
      double chi = 0.0;  // of 15 degrees of freedom: above 45 once in 10^4
      for (const int count : counts) chi += std::pow(count - kCount / 16.0, 2) / (kCount / 16.0);
      EXPECT_LT(chi, 45.0) << what << " of key " << key;
    };
    expect_even(low, "lower halves");
    expect_even(high, "upper halves");
    const char* const kWith[] = {"the upper half", "the next", "a later one", "the next key", "a high key"};
    for (int k = 0; k < 5; ++k) expect_even(pairs[k], kWith[k]);
  }
}

TEST(Bf16Moments, RoundToWhatIsAroundAndKeepWhatNeedsNoRounding) {
  EXPECT_EQ(round_moment(0.0f, 0xffff), 0.0f);
  EXPECT_EQ(std::signbit(round_moment(-0.0f, 0xffff)), true);
  EXPECT_EQ(round_moment(1.5f, 0xffff), 1.5f);
  const float x = bits_as<float>(0x3f800001u);  // just above 1
  EXPECT_EQ(round_moment(x, 0xfffe), 1.0f);
  EXPECT_EQ(round_moment(x, 0xffff), 1.0078125f);
  EXPECT_EQ(round_moment(-x, 0xffff), -1.0078125f);
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(round_moment(infinity, 0xffff), infinity);
  for (const std::uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xffffffffu})
    EXPECT_TRUE(std::isnan(round_moment(bits_as<float>(bits), 0xffff))) << bits;
}

TEST(Bf16Moments, RefuseOtherTypes) {
  State s = random_state(DType::fp32, 4);
  const Tensor gradient(DType::fp32, Doubles(4, 1.0));
  for (const UpdateCase& update : {kAdamW, kSgd}) {
    OptimizerArguments arguments = update.arguments(gradient, s);
    arguments.moment_type = DType::fp16;
    EXPECT_THROW(optimizer_update(TestContext(1), arguments), UsageError);
  }
}

}  // namespace
}  // namespace tessera::kernels::testing
