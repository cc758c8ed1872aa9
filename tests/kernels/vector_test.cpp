// casts.h, reduce.h, optimizer.h, the simple ops of elementwise.h, and how the CPU shares work out.
#include <fmt/format.h>

#include <atomic>

#include "kernels/cpu/parallel.h"
#include "tests/kernels/instruction_sets.h"
#include "tests/kernels/scalar_update.h"
#include "tests/kernels/support.h"

namespace tessera::kernels::testing {
namespace {

const std::int64_t kNumels[] = {1, 2, 15, 16, 17, 31, 63, 64, 65, 100, 1023, 1024, 1025, 40000};

// ------------------------------------------------------------------ parallel_chunks

// Of any count, with more threads than chunks and more than there are parts.
TEST(ParallelChunks, TakeEveryElementOnce) {
  for (const int threads : {1, 2, 3, 70})
    for (const std::int64_t count : {0, 1, 63, 64, 65, 1000, 64 * 1000 + 1}) {
      std::vector<std::atomic<int>> taken(static_cast<std::size_t>(count));
      std::atomic<bool> fit = true;
      parallel_chunks(threads, count, 64, 256, [&](std::int64_t begin, std::int64_t end) {
        if (begin % 64 != 0 || begin >= end || (threads > 1 && end - begin > 256)) fit = false;
        for (std::int64_t i = begin; i < end; ++i) ++taken[static_cast<std::size_t>(i)];
      });
      EXPECT_TRUE(fit) << count << " by " << threads;
      EXPECT_EQ(std::count(taken.begin(), taken.end(), 1), count) << threads;
    }
}

// ------------------------------------------------------------------ copy

// Small, and large enough to pass by the caches; from and to any place; nothing beside the target changes.
TEST(Copy, CopiesAnyBytes) {
  constexpr std::int64_t kLarge = (4 << 20) + 77;
  std::vector<std::uint8_t> source(kLarge + 200);
  for (std::size_t i = 0; i < source.size(); ++i)
    source[i] = static_cast<std::uint8_t>(i * 2654435761u >> 13);
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{1}, std::int64_t{4095}, kLarge - 77, kLarge})
    for (const std::size_t offset : {0, 1, 63, 64}) {
      std::vector<std::uint8_t> target(static_cast<std::size_t>(bytes) + 200, 0xA5), expected = target;
      std::memcpy(expected.data() + offset, source.data() + 70 - offset, static_cast<std::size_t>(bytes));
      copy(target.data() + offset, source.data() + 70 - offset, bytes);
      ASSERT_TRUE(target == expected) << bytes << " bytes to offset " << offset;
    }
  copy(nullptr, nullptr, 0);
}

// ------------------------------------------------------------------ casts

TEST(FloatTypes, EveryHalfSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const Fp16 half = {static_cast<std::uint16_t>(bits)};
    const Bf16 brain = {static_cast<std::uint16_t>(bits)};
    const bool half_nan = (bits & 0x7fffu) > 0x7c00u, brain_nan = (bits & 0x7fffu) > 0x7f80u;
    ASSERT_EQ(std::isnan(to_float(half)), half_nan);
    ASSERT_EQ(std::isnan(to_float(brain)), brain_nan);
    ASSERT_EQ(from_float<Fp16>(to_float(half)).bits, half_nan ? bits | 0x200u : bits);
    ASSERT_EQ(from_float<Bf16>(to_float(brain)).bits, brain_nan ? bits | 0x40u : bits);
  }
}

// The neighbours of x in a 16-bit type, by walking over all of its values: an oracle without bit tricks.
template <class T>
void expect_nearest_even(float x) {
  const auto value_of = [](std::uint32_t bits) {
    return static_cast<double>(to_float(T{static_cast<std::uint16_t>(bits)}));
  };
  constexpr std::uint32_t kInfinity = std::is_same_v<T, Fp16> ? 0x7c00u : 0x7f80u;
  std::uint32_t low = 0, high = kInfinity;  // magnitudes grow with their bits
  const double magnitude = std::abs(static_cast<double>(x));
  while (high - low > 1) (value_of((low + high) / 2) <= magnitude ? low : high) = (low + high) / 2;
  // Infinity stands where the next power of two would.
  const double above =
      high == kInfinity ? 2 * value_of(kInfinity - 1) - value_of(kInfinity - 2) : value_of(high);
  double above_exact = high == kInfinity
                           ? value_of(kInfinity - 1) + (value_of(kInfinity - 1) - value_of(kInfinity - 2))
                           : above;
  const double middle = (value_of(low) + above_exact) / 2;
  const std::uint32_t expected = magnitude < middle   ? low
                                 : magnitude > middle ? high
                                                      : (low % 2 == 0 ? low : high);
  ASSERT_EQ(from_float<T>(x).bits & 0x7fffu, expected) << x;
  ASSERT_EQ(from_float<T>(x).bits >> 15, std::signbit(x) ? 1u : 0u);
}

float float_of(std::uint64_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits)); }

TEST(FloatTypes, RoundsToNearestEven) {
  std::mt19937_64 engine(1);
  for (int i = 0; i < 200000; ++i) {
    const float any = float_of(engine());
    if (!std::isfinite(any)) continue;
    expect_nearest_even<Bf16>(any);
    expect_nearest_even<Fp16>(any);
    // Near the range of fp16, and exactly on ties.
    const float moderate = float_of((engine() & 0x83ffffffu) + (engine() % 50 << 23) + 0x30000000u);
    if (!std::isfinite(moderate)) continue;
    expect_nearest_even<Fp16>(moderate);
    expect_nearest_even<Fp16>(float_of(std::bit_cast<std::uint32_t>(moderate) & ~0xfffu));
    expect_nearest_even<Bf16>(float_of(std::bit_cast<std::uint32_t>(any) & ~0x7fffu));
  }
}

// Random bits, so NaN, infinities and subnormals are among them.
Tensor random_bits(DType type, std::int64_t numel, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  Tensor result(type, numel);
  auto* bytes = static_cast<unsigned char*>(result.data());
  for (std::int64_t i = 0; i < numel * bytes_of(type); ++i) bytes[i] = static_cast<unsigned char>(engine());
  return result;
}

template <class From, class To>
void check_cast(DType from, DType to, std::int64_t numel, int threads) {
  const Tensor input = random_bits(from, numel, static_cast<std::uint64_t>(numel));
  Tensor output(to, numel), expected(to, numel);
  cast(TestContext(threads), numel, from, input.data(), to, output.data());
  for (std::int64_t i = 0; i < numel; ++i) {
    const float wide = to_float(static_cast<const From*>(input.data())[i]);
    static_cast<To*>(expected.data())[i] = from_float<To>(wide);
  }
  ASSERT_TRUE(output == expected) << name_of(from) << " to " << name_of(to) << ", " << numel;
}

TEST(Cast, EqualsTheScalarConversionBitForBit) {
  for (const int threads : kThreadCounts)
    for (const std::int64_t numel : kNumels) {
      check_cast<float, Bf16>(DType::fp32, DType::bf16, numel, threads);
      check_cast<float, Fp16>(DType::fp32, DType::fp16, numel, threads);
      check_cast<Bf16, float>(DType::bf16, DType::fp32, numel, threads);
      check_cast<Fp16, float>(DType::fp16, DType::fp32, numel, threads);
      check_cast<Bf16, Fp16>(DType::bf16, DType::fp16, numel, threads);
      check_cast<Fp16, Bf16>(DType::fp16, DType::bf16, numel, threads);
    }
}

TEST(Cast, InPlaceAndSameType) {
  const Tensor input = random_bits(DType::fp32, 50001, 1);
  Tensor narrow(DType::bf16, 50001), in_place = input, same(DType::fp32, 50001);
  cast(TestContext(1), 50001, DType::fp32, input.data(), DType::bf16, narrow.data());
  cast(TestContext(2), 50001, DType::fp32, in_place.data(), DType::bf16, in_place.data());
  EXPECT_EQ(std::memcmp(in_place.data(), narrow.data(), 50001 * 2), 0);
  cast(TestContext(2), 50001, DType::fp32, input.data(), DType::fp32, same.data());
  EXPECT_TRUE(same == input);
}

// ------------------------------------------------------------------ fill, copy, add

TEST(Elementwise, FillCopyAdd) {
  for (const DType type : kAllTypes)
    for (const int threads : kThreadCounts)
      for (const std::int64_t numel : kNumels) {
        Random random(static_cast<std::uint64_t>(numel));
        const Tensor a = random.tensor(type, numel), b = random.tensor(type, numel);
        Tensor filled(type, numel), copied(type, numel), sum(type, numel), in_place = a;
        Doubles expected;
        for (std::int64_t i = 0; i < numel; ++i)
          expected.push_back(
              static_cast<double>(static_cast<float>(a.get(i)) + static_cast<float>(b.get(i))));
        fill(TestContext(threads), type, numel, 1.7f, filled.data());
        copy_bytes(TestContext(threads), numel * bytes_of(type), a.data(), copied.data());
        add(TestContext(threads), type, numel, a.data(), b.data(), sum.data());
        add(TestContext(threads), type, numel, in_place.data(), b.data(), in_place.data());
        ASSERT_TRUE(filled == Tensor(type, Doubles(static_cast<std::size_t>(numel), 1.7)));
        ASSERT_TRUE(copied == a);
        ASSERT_TRUE(sum == Tensor(type, expected));
        ASSERT_TRUE(in_place == sum);
      }
}

// What lies between the rows of the output stays as it was.
TEST(Elementwise, CopyRows) {
  for (const int threads : kThreadCounts)
    for (const std::int64_t rows : {0, 1, 5, 4099}) {
      const CopyShape shape = {.rows = rows, .row_bytes = 6, .input_stride = 10, .output_stride = 8};
      std::vector<std::uint8_t> input(static_cast<std::size_t>(rows * 10));
      for (std::size_t i = 0; i < input.size(); ++i) input[i] = static_cast<std::uint8_t>(1 + i % 251);
      std::vector<std::uint8_t> output(static_cast<std::size_t>(rows * 8), 255), expected = output;
      for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row)
        for (std::size_t i = 0; i < 6; ++i) expected[8 * row + i] = input[10 * row + i];
      copy_rows(TestContext(threads), shape, input.data(), output.data());
      ASSERT_EQ(output, expected) << rows << " rows, " << threads << " threads";
    }
}

TEST(Elementwise, CopyRowsRefusesRowsThatOverlap) {
  const auto refusal = [](const CopyShape& shape) -> std::string {
    try {
      copy_rows(TestContext(1), shape, nullptr, nullptr);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(refusal({.rows = 2, .row_bytes = 6, .input_stride = 5, .output_stride = 6}),
            "copy_rows: input_stride is 5; it must be at least row_bytes, which is 6");
  EXPECT_EQ(refusal({.rows = 2, .row_bytes = 6, .input_stride = 6, .output_stride = 4}),
            "copy_rows: output_stride is 4; it must be at least row_bytes, which is 6");
}

// ------------------------------------------------------------------ ordered chain

void check_chain(DType type, std::int64_t numel, std::int64_t count, float beta, int threads) {
  Random random(static_cast<std::uint64_t>(numel * 131 + count));
  std::vector<Tensor> tensors;
  std::vector<const void*> pointers;
  // Contributions of very different scales: another order of additions gives other bits.
  for (std::int64_t j = 0; j < count; ++j)
    tensors.push_back(random.tensor(type, numel, j % 3 == 0 ? 1000.0 : 0.01));
  for (const Tensor& tensor : tensors) pointers.push_back(tensor.data());
  Tensor accumulator = beta == 0.0f ? Tensor(DType::fp32, numel) : random.tensor(DType::fp32, numel);
  Tensor expected(DType::fp32, numel);
  for (std::int64_t i = 0; i < numel; ++i) {
    auto sum = static_cast<float>(beta == 0.0f ? tensors[0].get(i) : accumulator.get(i));
    for (std::size_t j = beta == 0.0f ? 1 : 0; j < tensors.size(); ++j)
      sum += static_cast<float>(tensors[j].get(i));
    expected.set(i, static_cast<double>(sum));
  }
  ordered_chain(TestContext(threads), numel, type, pointers, beta, accumulator.floats());
  ASSERT_TRUE(accumulator == expected) << name_of(type) << " " << numel << " x " << count << " beta " << beta;
}

TEST(OrderedChain, IsTheScalarChainBitForBit) {
  for (const DType type : kAllTypes)
    for (const float beta : {0.0f, 1.0f}) {
      for (const std::int64_t numel : kNumels)
        for (const std::int64_t count : {1, 2, 3, 8}) check_chain(type, numel, count, beta, 1);
      for (std::int64_t count = 1; count <= 20; ++count) check_chain(type, 37, count, beta, 2);
      check_chain(type, 40000, 5, beta, 2);
      check_chain(type, 50, 1024, beta, 1);
    }
}

// So many sums at a cache line, of which none is read, are stored past the caches.
TEST(OrderedChain, StreamedStoresGiveTheSameBits) {
  for (const std::int64_t rest : {0, 37})
    for (const DType type : kAllTypes)
      for (const std::size_t count : {2, 9}) {
        const std::int64_t numel = (1 << 19) + rest;
        std::vector<Tensor> tensors;
        std::vector<const void*> pointers;
        for (std::size_t j = 0; j < count; ++j)
          tensors.push_back(Random(j).tensor(type, numel, j % 3 == 0 ? 1000.0 : 0.01));
        for (const Tensor& tensor : tensors) pointers.push_back(tensor.data());
        Tensor expected(DType::fp32, numel);  // by parts that are too short for it
        for (std::int64_t begin = 0; begin < numel; begin += 1 << 18) {
          std::vector<const void*> parts;
          for (const void* tensor : pointers)
            parts.push_back(static_cast<const char*>(tensor) + begin * bytes_of(type));
          ordered_chain(TestContext(1), std::min<std::int64_t>(1 << 18, numel - begin), type, parts, 0.0f,
                        expected.floats() + begin);
        }
        for_each_instruction_set([&](const char* name) {
          Aligned sums(DType::fp32, numel);
          ordered_chain(TestContext(2), numel, type, pointers, 0.0f, sums.floats());
          Tensor result(DType::fp32, numel);
          sums.copy_to(result);
          EXPECT_TRUE(result == expected)
              << name << ", " << rest << " over, " << count << " of " << name_of(type);
          EXPECT_TRUE(sums.kept_what_follows()) << name << ", " << rest << " over, " << count;
        });
      }
}

// As sum_of_squares() takes them from what was stored, and without a change of that.
void check_chain_squares(DType type, std::int64_t numel, std::size_t count, float beta) {
  std::vector<Tensor> tensors;
  std::vector<const void*> pointers;
  for (std::size_t j = 0; j < count; ++j) tensors.push_back(Random(j).tensor(type, numel));
  for (const Tensor& tensor : tensors) pointers.push_back(tensor.data());
  const Tensor start = Random(77).tensor(DType::fp32, numel);
  for_each_instruction_set([&](const char* name) {
    const std::string what =
        fmt::format("{}: {} x {} of {}, beta {}", name, count, numel, name_of(type), beta);
    Aligned sums(start), without(start);
    SquareSum squares, expected;
    ordered_chain(TestContext(2), numel, type, pointers, beta, sums.floats(), {&squares, 0});
    ordered_chain(TestContext(1), numel, type, pointers, beta, without.floats());
    EXPECT_EQ(std::memcmp(sums.data(), without.data(), static_cast<std::size_t>(numel) * 4), 0) << what;
    EXPECT_TRUE(sums.kept_what_follows()) << what;
    sum_of_squares(TestContext(1), numel, DType::fp32, sums.data(), {&expected, 0});
    EXPECT_TRUE(squares == expected) << what;
  });
}

TEST(OrderedChain, SquaresAreThoseOfTheSumsBitForBit) {
  for (const DType type : kAllTypes) {
    for (const std::int64_t numel : {1, 31, 1000, 1024, 1025, 40000})
      for (const std::size_t count : {1, 2, 8, 9})
        for (const float beta : {0.0f, 1.0f}) check_chain_squares(type, numel, count, beta);
    for (const std::size_t count : {2, 9}) check_chain_squares(type, (1 << 19) + 1037, count, 0.0f);
  }
}

TEST(OrderedChain, MayStartFromTheAccumulatorAsContribution) {
  Random random(1);
  Tensor a = random.tensor(DType::fp32, 5000), b = random.tensor(DType::fp32, 5000), sum(DType::fp32, 5000);
  add(TestContext(1), DType::fp32, 5000, a.data(), b.data(), sum.data());
  const void* contributions[] = {a.data(), b.data()};
  ordered_chain(TestContext(2), 5000, DType::fp32, contributions, 0.0f, a.floats());
  EXPECT_TRUE(a == sum);
}

TEST(OrderedChain, RefusesWrongCountsAndBeta) {
  float x = 0.0f;
  EXPECT_THROW(ordered_chain(TestContext(1), 1, DType::fp32, {}, 0.0f, &x), UsageError);
  const std::vector<const void*> many(1025, &x);
  EXPECT_THROW(ordered_chain(TestContext(1), 1, DType::fp32, many, 0.0f, &x), UsageError);
  EXPECT_THROW(accumulate(TestContext(1), 1, DType::fp32, &x, 0.5f, &x), UsageError);
}

TEST(Accumulate, IsTheChainOfOne) {
  for (const DType type : kAllTypes) {
    const Tensor input = Random(1).tensor(type, 333);
    Tensor accumulator(DType::fp32, 333);
    accumulate(TestContext(1), 333, type, input.data(), 0.0f, accumulator.floats());
    EXPECT_TRUE(accumulator == Tensor(DType::fp32, input.doubles()));
    accumulate(TestContext(1), 333, type, input.data(), 1.0f, accumulator.floats());
    EXPECT_TRUE(accumulator == Tensor(DType::fp32, sum_of(input.doubles(), input.doubles())));
  }
}

// ------------------------------------------------------------------ sum of squares

SquareSum squares(const Tensor& x, int threads = 1) {
  SquareSum result;
  sum_of_squares(TestContext(threads), x.numel(), x.type(), x.data(), {&result, 0});
  return result;
}

// By the order that tessera/exact_sum.h promises.
SquareSum promised_sum(const Tensor& x) {
  SquareSum total;
  for (std::int64_t begin = 0; begin < x.numel(); begin += kSquareBlock) {
    Doubles block(kSquareBlock);
    for (std::int64_t i = begin; i < std::min(x.numel(), begin + kSquareBlock); ++i)
      block[static_cast<std::size_t>(i - begin)] = x.get(i) * x.get(i);
    for (std::size_t apart = kSquareBlock / 2; apart > 0; apart /= 2)
      for (std::size_t i = 0; i < apart; ++i) block[i] += block[i + apart];
    exact::add_squares(total, block[0]);
  }
  return total;
}

// Ordinary numbers, denormal ones, and numbers of all sizes side by side.
Tensor wide_tensor(DType type, std::int64_t numel) {
  Random random(static_cast<std::uint64_t>(numel));
  Tensor x = random.tensor(type, numel);
  for (std::int64_t i = 0; i < numel; ++i)
    if (i / 5000 % 3 == 1)
      x.set(i, std::ldexp(x.get(i), type == DType::fp16 ? -20 : -140));
    else if (i / 5000 % 3 == 2)
      x.set(i, std::ldexp(x.get(i), static_cast<int>(i * 7919 % (type == DType::fp16 ? 20 : 260)) -
                                        (type == DType::fp16 ? 10 : 140)));
  return x;
}

TEST(SumOfSquares, FollowsThePromisedOrderBitForBit) {
  for (const DType type : kAllTypes)
    for (const std::int64_t numel : {1, 31, 63, 64, 65, 1000, 4096, 4097, 100003, 2048 * 600 + 5}) {
      const Tensor x = wide_tensor(type, numel);
      const SquareSum expected = promised_sum(x);
      for_each_instruction_set([&](const char* name) {
        for (const int threads : {1, 2, 3})
          EXPECT_TRUE(squares(x, threads) == expected) << name << ", " << numel << " of " << name_of(type);
      });
    }
  EXPECT_TRUE(squares(Tensor(DType::fp32, 0)) == SquareSum{});
}

TEST(SumOfSquares, IsThatOfItsParts) {
  for (const DType type : kAllTypes) {
    const Tensor x = wide_tensor(type, 50007);
    const SquareSum whole = squares(x);
    Random random(3);
    for (int turn = 0; turn < 20; ++turn) {
      SquareSum parts;
      for (std::int64_t begin = 0; begin < x.numel();) {
        const std::int64_t blocks = 1 + static_cast<std::int64_t>(std::fabs(random.normal()) * 100.0);
        const std::int64_t end = std::min(x.numel(), begin + blocks * kSquareBlock);
        sum_of_squares(TestContext(1 + turn % 2), end - begin, type,
                       static_cast<const char*>(x.data()) + begin * bytes_of(type), {&parts, begin});
        begin = end;
      }
      EXPECT_TRUE(parts == whole) << name_of(type);
    }
  }
}

TEST(SumOfSquares, FindsTheFirstNonFiniteElement) {
  for (const DType type : kAllTypes)
    for (const std::int64_t place : {0, 17, 2047, 2048, 50000, 2048 * 300 - 1, 2048 * 300 + 7}) {
      const std::int64_t numel = 2048 * 301;
      Tensor x = Random(1).tensor(type, numel);
      x.set(numel - 1, std::nan(""));
      x.set(place, std::numeric_limits<double>::infinity());
      SquareSum result;
      sum_of_squares(TestContext(2), numel, type, x.data(), {&result, 128});
      EXPECT_EQ(exact::first_nonfinite(result), 128 + place);
      EXPECT_TRUE(std::isnan(exact::value_of(result)));
    }
}

TEST(SumOfSquares, LargestFloatsDoNotOverflow) {
  const double largest = -static_cast<double>(std::numeric_limits<float>::max());
  const Tensor x(DType::fp32, Doubles(20000, largest));
  EXPECT_EQ(exact::first_nonfinite(squares(x)), -1);
  EXPECT_NEAR(exact::value_of(squares(x)) / (20000.0 * largest * largest), 1.0, 1e-15);
}

TEST(SumOfSquares, RefusesToBeginInsideABlock) {
  const float x = 1.0f;
  SquareSum sum;
  EXPECT_THROW(sum_of_squares(TestContext(1), 1, DType::fp32, &x, {&sum, 32}), UsageError);
  EXPECT_THROW(sum_of_squares(TestContext(1), 1, DType::fp32, &x, {&sum, -64}), UsageError);
}

// ------------------------------------------------------------------ optimizers

State random_state(DType parameter_type, std::int64_t numel) {
  Random random(static_cast<std::uint64_t>(numel) + 1);
  State s = {random.tensor(DType::fp32, numel), random.tensor(DType::fp32, numel, 0.1),
             Tensor(DType::fp32, numel), Tensor(parameter_type, numel)};
  for (std::int64_t i = 0; i < numel; ++i) s.v.set(i, std::pow(random.normal(), 2) * 0.01);
  return s;
}

const UpdateCase kAdamW = {.options = AdamWOptions{.beta2 = 0.95},
                           .terms = {.learning_rate = 3e-3, .weight_decay = 0.1, .step = 3},
                           .gradient_scale = 0.37f};
const UpdateCase kAdam = {
    .options = AdamOptions{.beta2 = 0.95}, .terms = kAdamW.terms, .gradient_scale = 0.37f};
UpdateCase sgd(double momentum, bool nesterov) {
  return {.options = SgdOptions{.momentum = momentum, .nesterov = nesterov},
          .terms = {.learning_rate = 0.1, .weight_decay = 0.01},
          .gradient_scale = 0.3f};
}
const UpdateCase kLion = {
    .options = LionOptions{}, .terms = {.learning_rate = 1e-3, .weight_decay = 0.3}, .gradient_scale = 0.37f};
std::vector<UpdateCase> all_updates() {
  return {kLion, kAdamW, kAdam, sgd(0.0, false), sgd(0.9, false), sgd(0.9, true)};
}

TEST(Optimizers, EqualTheScalarBodyBitForBit) {
  for (const UpdateCase& update : all_updates())
    for (const DType parameter : kAllTypes)
      for (const DType gradient_type : kAllTypes)
        for (const std::int64_t numel : kNumels)
          for (const int threads : kThreadCounts) {
            const Tensor gradient = Random(9).tensor(gradient_type, numel);
            State scalar = random_state(parameter, numel), vector = scalar;
            scalar_update(update, gradient, scalar);
            optimizer_update(TestContext(threads), update.arguments(gradient, vector));
            ASSERT_TRUE(scalar == vector) << numel;
          }
}

// A state with the masters that are the hardest to round at both ends and between.
State hard_state(DType parameter_type, std::int64_t numel) {
  State s = random_state(parameter_type, numel);
  const float infinity = std::numeric_limits<float>::infinity();
  const float hard[] = {infinity, -infinity, std::nanf("1"), 3.4e38f, -65520.0f, 1e-40f, 6e-8f, -0.0f};
  for (std::int64_t i = 0; i < numel; i += i % 3 == 0 ? 1 : 1021)
    s.master.floats()[i] = hard[i % static_cast<std::int64_t>(std::size(hard))];
  return s;
}

// So many parameters at a cache line are stored past the caches; what is left over by whole lines is not.
void expect_streamed(const UpdateCase& update, std::int64_t rest) {
  for (const DType type : kAllTypes) {
    const std::int64_t numel = (1 << 19) + rest;
    const Tensor gradient = Random(9).tensor(rest % 2 == 0 ? DType::bf16 : type, numel);
    State scalar = hard_state(type, numel);
    const State before = scalar;
    scalar_update(update, gradient, scalar);
    for_each_instruction_set([&](const char* name) {
      State vector = before;
      Aligned parameter(type, numel);
      OptimizerArguments arguments = update.arguments(gradient, vector);
      arguments.parameter = parameter.data();
      optimizer_update(TestContext(2), arguments);
      parameter.copy_to(vector.parameter);
      EXPECT_TRUE(scalar == vector) << name << ", " << rest << " over, " << name_of(type);
      EXPECT_TRUE(parameter.kept_what_follows()) << name << ", " << rest << " over, " << name_of(type);
    });
  }
}

TEST(Optimizers, StreamedStoresGiveTheSameBits) {
  for (const std::int64_t rest : {0, 5, 16, 37, 63, 64, 127}) expect_streamed(kAdamW, rest);
  for (const double momentum : {0.0, 0.9}) expect_streamed(sgd(momentum, false), 64 + 37);
  expect_streamed(kLion, 64 + 37);
}

TEST(AdamW, MatchesFloat64OverSteps) {
  const std::int64_t numel = 50;
  for (const bool decoupled : {true, false}) {
    State s = random_state(DType::fp32, numel);
    Doubles p = s.master.doubles(), m(50), v(50);
    fill(TestContext(1), DType::fp32, numel, 0.0f, s.m.data());
    fill(TestContext(1), DType::fp32, numel, 0.0f, s.v.data());
    for (int step = 1; step <= 20; ++step) {
      const Tensor gradient = Random(static_cast<std::uint64_t>(step)).tensor(DType::fp32, numel);
      UpdateCase update = decoupled ? kAdamW : kAdam;
      update.terms.step = step;
      optimizer_update(TestContext(1), update.arguments(gradient, s));
      const rules::RuleTerms& terms = update.terms;
      const AdamWOptions o{.beta2 = 0.95};
      for (std::size_t i = 0; i < p.size(); ++i) {
        double g = gradient.get(static_cast<std::int64_t>(i)) * update.gradient_scale;
        if (!decoupled) g += terms.weight_decay * p[i];
        if (decoupled) p[i] -= terms.learning_rate * terms.weight_decay * p[i];
        m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
        v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
        const double m_hat = m[i] / (1 - std::pow(o.beta1, step));
        const double v_hat = v[i] / (1 - std::pow(o.beta2, step));
        p[i] -= terms.learning_rate * m_hat / (std::sqrt(v_hat) + o.epsilon);
      }
    }
    expect_close(s.master, p, 1e-6, "parameters");
    expect_close(s.m, m, 1e-6, "m");
    expect_close(s.v, v, 1e-6, "v");
  }
}

TEST(Optimizers, AGateGivesTheScaleOrKeepsEverything) {
  const std::int64_t numel = 1003;
  const Tensor gradient = Random(9).tensor(DType::bf16, numel);
  const State before = random_state(DType::bf16, numel);
  for (const UpdateCase& update : all_updates()) {
    const auto updated = [&](double own_scale, const UpdateGate* gate) {
      State s = before;
      OptimizerArguments arguments = update.arguments(gradient, s);
      arguments.gradient_scale = static_cast<float>(own_scale);
      arguments.gate = gate;
      optimizer_update(TestContext(2), arguments);
      return s;
    };
    const UpdateGate open = {.gradient_scale = 1.0 / 3.0}, closed = {.gradient_scale = 1.0 / 3.0, .apply = 0};
    EXPECT_TRUE(updated(7.0, &open) == updated(1.0 / 3.0, nullptr));
    EXPECT_FALSE(updated(7.0, &open) == updated(7.0, nullptr));
    EXPECT_TRUE(updated(7.0, &closed) == before);
  }
}

TEST(Optimizers, RunsAreOfAllElementsAndNotTooMany) {
  const auto update = [](std::vector<CoefficientRun> runs) {
    State s = random_state(DType::bf16, 34);
    const Tensor gradient = Random(9).tensor(DType::bf16, 34);
    OptimizerArguments arguments = kAdamW.arguments(gradient, s);
    arguments.runs = runs;
    optimizer_update(TestContext(1), arguments);
  };
  EXPECT_NO_THROW(update({{.numel = 30}, {.numel = 4}}));
  EXPECT_THROW(update({{.numel = 30}, {.numel = 3}}), UsageError);
  EXPECT_THROW(update(std::vector<CoefficientRun>(17, {.numel = 2})), UsageError);
  EXPECT_THROW(update({{.numel = 30}, {.numel = 4, .coefficients = sgd(0.0, false).coefficients()}}),
               UsageError);
}

TEST(Optimizers, NeedTheMomentsOfTheirRule) {
  const auto refused = [](const UpdateCase& update, int count, bool null) {
    State s = random_state(DType::fp32, 4);
    const Tensor gradient(DType::fp32, Doubles(4, 1.0));
    OptimizerArguments arguments = update.arguments(gradient, s);
    arguments.moment_count = count;
    if (null) arguments.moments[0] = nullptr;
    try {
      optimizer_update(TestContext(1), arguments);
      return std::string();
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(refused(kAdamW, 2, false), "");
  EXPECT_EQ(refused(kAdamW, 1, false), "adamw_update: 1 moments are not possible; use 2");
  EXPECT_EQ(refused(kAdamW, 2, true), "adamw_update: moment 0 is null; give all 2");
  EXPECT_EQ(refused(sgd(0.9, false), 1, true), "sgd_update: moment 0 is null; give all 1");
  EXPECT_EQ(refused(sgd(0.9, false), 2, false), "sgd_update: 2 moments are not possible; use 0 to 1");
}

}  // namespace
}  // namespace tessera::kernels::testing
