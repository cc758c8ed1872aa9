// dropout.h against philox() itself, to the bit.
#include "kernels/dropout_math.h"
#include "tests/kernels/dropout_reference.h"
#include "tests/kernels/support.h"

namespace tessera::kernels::testing {
namespace {

constexpr Dropout kDropout = {
    .threshold = 19661, .key = 0x0123456789abcdef, .matrix = 3, .first_sequence = 0xfffffffe};

Tensor expected(const DropoutShape& shape, const Dropout& dropout, const Tensor& input) {
  Tensor output(shape.type, input.numel());
  for (std::int64_t i = 0; i < input.numel(); ++i) {
    const std::int64_t row = i / shape.channels;
    const float factor =
        dropout_factor(dropout, row / shape.sequence, 0, row % shape.sequence, i % shape.channels);
    output.set(i, factor == 0.0f ? 0.0f : factor * static_cast<float>(input.get(i)));
  }
  return output;
}

TEST(Dropout, DropsWhatTheCountersSay) {
  for (const DType type : kComputeTypes)
    for (const std::int64_t channels : {1, 7, 8, 15, 16, 100, 127, 128, 129, 300})
      for (const std::int64_t sequence : {1, 3, 70}) {
        const DropoutShape shape = {.batch = 4, .sequence = sequence, .channels = channels, .type = type};
        Random random(static_cast<std::uint64_t>(channels));
        const Tensor input = random.tensor(type, 4 * sequence * channels);
        const Tensor should_be = expected(shape, kDropout, input);
        for (const int threads : {1, kMostThreads}) {
          Tensor output(type, input.numel()), in_place = input;
          dropout(TestContext(threads), shape, kDropout, input.data(), output.data());
          dropout(TestContext(threads), shape, kDropout, in_place.data(), in_place.data());
          EXPECT_TRUE(output == should_be) << channels << " " << sequence;
          EXPECT_TRUE(in_place == should_be) << channels << " " << sequence;
        }
      }
}

// What kernels of a GPU draw one block at a time.
TEST(Dropout, BitsAreThoseOfTheBlock) {
  for (std::uint32_t block = 0; block < 200; ++block) {
    const DrawnRow at = {.sequence = block % 5, .matrix = block % 3, .row = block * 77};
    const unsigned kept = kept_bits(kDropout, at, block);
    for (std::uint32_t i = 0; i < 8; ++i)
      EXPECT_EQ((kept >> i & 1) != 0,
                dropout_factor(kDropout, at.sequence, at.matrix, at.row, 8 * block + i) != 0.0f);
    EXPECT_EQ(kept >> 8, 0u);
  }
}

// A batch that is cut into microbatches, or dealt out to ranks, is dropped as the whole would be.
TEST(Dropout, FollowsTheSequenceWhereverItLies) {
  const DropoutShape whole = {.batch = 6, .sequence = 5, .channels = 40, .type = DType::fp32};
  Random random(1);
  const Tensor input = random.tensor(whole.type, 6 * 5 * 40);
  Tensor once(whole.type, input.numel()), in_parts(whole.type, input.numel());
  dropout(TestContext(1), whole, kDropout, input.data(), once.data());
  for (std::uint32_t first = 0; first < 6; first += 2) {
    DropoutShape part = whole;
    part.batch = 2;
    Dropout of_part = kDropout;
    of_part.first_sequence += first;
    const std::int64_t offset = std::int64_t{first} * 5 * 40;
    dropout(TestContext(1), part, of_part, static_cast<const float*>(input.data()) + offset,
            in_parts.floats() + offset);
  }
  EXPECT_TRUE(once == in_parts);
}

// Ranks that split the batch's rows drop what one rank would.
TEST(Dropout, APartOfTheRowsIsDroppedAsTheWhole) {
  for (const DType type : kComputeTypes) {
    const DropoutShape whole = {.batch = 3, .sequence = 14, .channels = 41, .type = type};
    const Tensor input = Random(1).tensor(type, 42 * 41);
    Tensor once(type, input.numel());
    dropout(TestContext(1), whole, kDropout, input.data(), once.data());
    for (const std::int64_t rows : {1, 6, 7, 21, 42})
      for (const int threads : {1, kMostThreads}) {
        Tensor in_parts(type, input.numel());
        for (std::int64_t first = 0; first < 42; first += rows) {
          DropoutShape part = whole;
          part.first_row = first;
          part.rows = rows;
          const std::int64_t begin = first * 41 * bytes_of(type);
          dropout(TestContext(threads), part, kDropout, static_cast<const char*>(input.data()) + begin,
                  static_cast<char*>(in_parts.data()) + begin);
        }
        EXPECT_TRUE(once == in_parts) << rows;
      }
  }
}

TEST(Dropout, OfAPartOfTheRowsNothingElseIsTouched) {
  const DropoutShape part = {
      .batch = 3, .sequence = 4, .channels = 5, .type = DType::fp32, .first_row = 6, .rows = 2};
  const Tensor input = Random(1).tensor(part.type, 10);
  for (const Dropout& each : {kDropout, Dropout{}}) {
    Tensor output(part.type, 15);
    dropout(TestContext(1), part, each, input.data(), output.data());
    for (std::int64_t i = 0; i < 15; ++i) EXPECT_EQ(std::isnan(output.get(i)), i >= 10) << i;
  }
}

TEST(Dropout, KeepsItsShareAndTheExpectation) {
  const DropoutShape shape = {.batch = 8, .sequence = 64, .channels = 512, .type = DType::fp32};
  const std::int64_t numel = 8 * 64 * 512;
  const Tensor ones(shape.type, Doubles(static_cast<std::size_t>(numel), 1.0));
  for (const double share : {0.01, 0.1, 0.5, 0.9}) {
    Dropout dropped = kDropout;
    dropped.threshold = dropout_threshold(share);
    Tensor output(shape.type, numel);
    dropout(TestContext(1), shape, dropped, ones.data(), output.data());
    double zeros = 0.0, sum = 0.0;
    for (const double value : output.doubles()) {
      zeros += value == 0.0 ? 1.0 : 0.0;
      sum += value;
    }
    const double n = static_cast<double>(numel), deviation = std::sqrt(n * share * (1.0 - share));
    EXPECT_NEAR(zeros, share * n, 5.0 * deviation + n * 0x1p-17) << share;
    EXPECT_NEAR(sum / n, 1.0, 5.0 * deviation / n / (1.0 - share) + 1e-4) << share;
  }
}

// Changing any counter changes about 2 · 0.3 · 0.7 of the decisions.
TEST(Dropout, DrawsAnewForEachKeyMatrixAndSequence) {
  const DropoutShape shape = {.batch = 1, .sequence = 64, .channels = 512, .type = DType::fp32};
  const std::int64_t numel = 64 * 512;
  const Tensor ones(shape.type, Doubles(static_cast<std::size_t>(numel), 1.0));
  const auto draw = [&](const Dropout& dropped) {
    Tensor output(shape.type, numel);
    dropout(TestContext(1), shape, dropped, ones.data(), output.data());
    return output.doubles();
  };
  const Doubles first = draw(kDropout);
  Dropout low = kDropout, high = kDropout, matrix = kDropout, sequence = kDropout;
  low.key ^= 1;
  high.key ^= std::uint64_t{1} << 63;
  matrix.matrix += 1;
  sequence.first_sequence += 1;
  for (const Dropout& other : {low, high, matrix, sequence}) {
    const Doubles second = draw(other);
    double unlike = 0.0;
    for (std::size_t i = 0; i < first.size(); ++i) unlike += first[i] != second[i] ? 1.0 : 0.0;
    EXPECT_NEAR(unlike / static_cast<double>(numel), 0.42, 0.015);
  }
}

TEST(Dropout, OfNothingIsACopyAndWhatIsDroppedIsZeroEvenOfNan) {
  const DropoutShape shape = {.batch = 1, .sequence = 3, .channels = 21, .type = DType::bf16};
  Random random(1);
  const Tensor input = random.tensor(shape.type, 63);
  Tensor output(shape.type, 63), nan(shape.type, 63);  // full of it
  dropout(TestContext(1), shape, {}, input.data(), output.data());
  EXPECT_TRUE(output == input);
  dropout(TestContext(1), shape, kDropout, nan.data(), nan.data());
  for (std::int64_t i = 0; i < 63; ++i) {
    const bool kept = dropout_factor(kDropout, 0, 0, i / 21, i % 21) != 0.0f;
    EXPECT_TRUE(kept ? std::isnan(nan.get(i)) : nan.get(i) == 0.0) << i;
  }
}

TEST(Dropout, ThresholdIsTheNearestThatDropsSomeAndKeepsSome) {
  EXPECT_EQ(dropout_threshold(0.0), 0u);
  EXPECT_EQ(dropout_threshold(1e-12), 1u);
  EXPECT_EQ(dropout_threshold(0.1), 6554u);
  EXPECT_EQ(dropout_threshold(0.5), 32768u);
  EXPECT_EQ(dropout_threshold(0.9999999), 65535u);
  EXPECT_EQ((Dropout{.threshold = 32768}).scale(), 2.0f);
  EXPECT_EQ(Dropout{}.scale(), 1.0f);
  for (const double share : {1.0, -0.1, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THROW(dropout_threshold(share), UsageError) << share;
}

TEST(Dropout, RefusesWhatItCannotCompute) {
  Tensor x(DType::fp16, 8);
  const DropoutShape shape = {.batch = 1, .sequence = 1, .channels = 8, .type = DType::fp16};
  EXPECT_THROW(dropout(TestContext(1), shape, {}, x.data(), x.data()), UsageError);
  const DropoutShape fp32 = {.batch = 1, .sequence = 1, .channels = 4, .type = DType::fp32};
  EXPECT_THROW(dropout(TestContext(1), fp32, {.threshold = 65536}, x.data(), x.data()), UsageError);
  for (const auto& [first, rows] : {std::pair{1, 0}, {-1, 1}, {1, 1}, {0, 2}, {0, -1}}) {
    DropoutShape part = fp32;
    part.first_row = first;
    part.rows = rows;
    EXPECT_THROW(dropout(TestContext(1), part, kDropout, x.data(), x.data()), UsageError) << first << rows;
  }
}

}  // namespace
}  // namespace tessera::kernels::testing
