// What ranks that split a layer compute, put together: the ends of sums over ranks, and the embedding by rows
// of its table.
#include "tests/kernels/support.h"

namespace tessera::kernels::testing {
namespace {

// ------------------------------------------------------------------ sums

TEST(FinishSum, IsTheRoundedSum) {
  for (const DType type : kComputeTypes)
    for (const int threads : {1, 2, kMostThreads})
      for (const std::int64_t channels : {1, 15, 16, 100, 771}) {
        const SumShape shape = {.rows = 53, .channels = channels, .type = type};
        Random random(static_cast<std::uint64_t>(channels));
        const Tensor sum = random.tensor(DType::fp32, 53 * channels), bias = random.tensor(type, channels);
        Tensor plain(type, sum.numel()), biased(type, sum.numel()), in_place = sum;
        const auto* const sums = static_cast<const float*>(sum.data());
        finish_sum(TestContext(threads), shape, sums, nullptr, plain.data());
        finish_sum(TestContext(threads), shape, sums, bias.data(), biased.data());
        Tensor expected(type, sum.numel());  // of fp32 numbers the sum in float64 is exact
        for (std::int64_t i = 0; i < sum.numel(); ++i) expected.set(i, sum.get(i) + bias.get(i % channels));
        EXPECT_TRUE(plain == Tensor(type, sum.doubles()));
        if (type == DType::fp32) {
          EXPECT_TRUE(biased == expected);
          finish_sum(TestContext(threads), shape, in_place.floats(), nullptr, in_place.data());
          EXPECT_TRUE(in_place == sum);
          finish_sum(TestContext(threads), shape, in_place.floats(), bias.data(), in_place.data());
          EXPECT_TRUE(in_place == biased);
        } else {  // the fp32 sum is rounded, so bf16 may be its neighbour where float64 is in the middle
          for (std::int64_t i = 0; i < sum.numel(); ++i)
            ASSERT_NEAR(biased.get(i), sum.get(i) + bias.get(i % channels),
                        std::abs(biased.get(i)) * 0x1.01p-8 + 1e-7);
        }
      }
}

// The output's own values take the place of the bias, each of them once.
TEST(AddSum, IsTheRoundedSum) {
  for (const DType type : kComputeTypes)
    for (const int threads : {1, 2, kMostThreads})
      for (const std::int64_t channels : {1, 15, 16, 771}) {
        const SumShape shape = {.rows = 53, .channels = channels, .type = type};
        Random random(static_cast<std::uint64_t>(channels));
        const Tensor sum = random.tensor(DType::fp32, 53 * channels),
                     before = random.tensor(type, sum.numel());
        const auto* const sums = static_cast<const float*>(sum.data());
        Tensor written(type, sum.numel()), added = before;  // the first is full of NaN
        add_sum(TestContext(threads), shape, sums, 0.0f, written.data());
        EXPECT_TRUE(written == Tensor(type, sum.doubles()));
        add_sum(TestContext(threads), shape, sums, 1.0f, added.data());
        Tensor in_fp32(DType::fp32, sum.numel());
        for (std::int64_t i = 0; i < sum.numel(); ++i) in_fp32.set(i, sum.get(i) + before.get(i));
        EXPECT_TRUE(added == Tensor(type, in_fp32.doubles()));
      }
}

TEST(AddSum, RefusesAnotherBeta) {
  Tensor t(DType::fp32, 4);
  EXPECT_THROW(add_sum(TestContext(1), {.rows = 1, .channels = 2}, t.floats(), 0.5f, t.floats() + 2),
               UsageError);
}

// A layer whose inner dim is split: the ranks' partial sums, added, then rounded with the bias.
TEST(FinishSum, EndsALayerThatRanksSplit) {
  for (const DType type : kComputeTypes)
    for (const std::int64_t ranks : {1, 2, 4}) {
      const std::int64_t rows = 31, in = 64, out = 50, own = in / ranks;
      Random random(3);
      const Tensor x = random.tensor(type, rows * in), w = random.tensor(type, out * in),
                   bias = random.tensor(type, out);
      const auto columns = [&](const Tensor& from, std::int64_t rank) {
        Doubles values;
        for (std::int64_t i = 0; i < from.numel(); ++i)
          if (i % in / own == rank) values.push_back(from.get(i));
        return Tensor(type, values);
      };
      Tensor sum(DType::fp32, Doubles(static_cast<std::size_t>(rows * out)));
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const LinearShape shape = {.rows = rows, .in = own, .out = out, .type = type};
        Tensor part(DType::fp32, rows * out);
        linear_forward_partial(TestContext(1, linear_partial_workspace_bytes(shape, 1)), shape,
                               columns(x, rank).data(), columns(w, rank).data(), part.floats());
        for (std::int64_t i = 0; i < sum.numel(); ++i) sum.floats()[i] += part.floats()[i];
      }
      Tensor output(type, rows * out);
      finish_sum(TestContext(1), {.rows = rows, .channels = out, .type = type}, sum.floats(), bias.data(),
                 output.data());
      Doubles expected(static_cast<std::size_t>(rows * out));
      for (std::int64_t i = 0; i < rows * out; ++i) {
        double& element = expected[static_cast<std::size_t>(i)] = bias.get(i % out);
        for (std::int64_t k = 0; k < in; ++k) element += x.get(i / out * in + k) * w.get(i % out * in + k);
      }
      expect_close(output, expected, tolerance_of(type), std::to_string(ranks) + " ranks");
    }
}

TEST(FinishSum, RefusesOtherTypes) {
  Tensor t(DType::fp16, 4);
  EXPECT_THROW(finish_sum(TestContext(1), {.rows = 1, .channels = 2, .type = DType::fp16}, t.floats(),
                          nullptr, t.data()),
               UsageError);
}

// ------------------------------------------------------------------ embedding

constexpr std::int64_t kVocabulary = 90, kChannels = 21, kBatch = 5, kSequence = 11,
                       kRows = kBatch * kSequence;

EmbeddingShape whole_shape(DType type, std::int64_t positions) {
  return {.batch = kBatch,
          .sequence = kSequence,
          .channels = kChannels,
          .vocabulary = kVocabulary,
          .positions = positions,
          .type = type};
}
// The last rank has padding where they do not divide; of 16, it has nothing else.
EmbeddingShape part_shape(DType type, std::int64_t ranks, std::int64_t rank) {
  EmbeddingShape shape = whole_shape(type, 0);
  shape.table_rows = (kVocabulary + ranks - 1) / ranks;
  shape.first_token = rank * shape.table_rows;
  return shape;
}
// A rank's rows of a table; padding is NaN.
Tensor part_of(const Tensor& table, const EmbeddingShape& shape) {
  Tensor part(table.type(), shape.table_rows * kChannels);
  for (std::int64_t i = 0; i < part.numel(); ++i)
    if (const std::int64_t from = shape.first_token * kChannels + i; from < table.numel())
      part.set(i, table.get(from));
  return part;
}

struct Inputs {
  Tensor table, positions;
  std::vector<std::int32_t> tokens;

  explicit Inputs(DType type)
      : table(Random(1).tensor(type, kVocabulary * kChannels)),
        positions(Random(2).tensor(type, kSequence * kChannels)),
        tokens(Random(3).tokens(kRows, kVocabulary)) {
    for (std::int64_t i = 0; i < table.numel(); i += 3) table.set(i, -0.0);
    for (std::int64_t i = 0; i < positions.numel(); i += 2) positions.set(i, -0.0);
    tokens[7] = kVocabulary - 1;
  }
};

TEST(EmbeddingByRows, RanksAddUpToTheBitsOfOne) {
  for (const DType type : kComputeTypes)
    for (const std::int64_t ranks : {1, 2, 4, 7, 16})
      for (const int threads : kThreadCounts) {
        const Inputs in(type);
        Tensor sum(DType::fp32, kRows * kChannels);
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          const EmbeddingShape shape = part_shape(type, ranks, rank);
          const Tensor part = part_of(in.table, shape);
          Tensor rows(type, kRows * kChannels), wide(DType::fp32, kRows * kChannels);
          embedding_forward(TestContext(threads), shape, in.tokens.data(), part.data(), nullptr, rows.data());
          embedding_forward_partial(TestContext(threads), shape, in.tokens.data(), part.data(),
                                    wide.floats());
          EXPECT_TRUE(wide == Tensor(DType::fp32, rows.doubles()));
          for (std::int64_t i = 0; i < sum.numel(); ++i)
            sum.floats()[i] = rank == 0 ? wide.floats()[i] : sum.floats()[i] + wide.floats()[i];
        }
        Tensor plain(type, sum.numel()), placed(type, sum.numel()), one(type, sum.numel()),
            one_placed(type, sum.numel());
        finish_sum(TestContext(threads), {.rows = kRows, .channels = kChannels, .type = type}, sum.floats(),
                   nullptr, plain.data());
        add_positions(TestContext(threads),
                      {.rows = kRows, .sequence = kSequence, .channels = kChannels, .type = type},
                      sum.floats(), in.positions.data(), placed.data());
        embedding_forward(TestContext(threads), whole_shape(type, 0), in.tokens.data(), in.table.data(),
                          nullptr, one.data());
        embedding_forward(TestContext(threads), whole_shape(type, kSequence), in.tokens.data(),
                          in.table.data(), in.positions.data(), one_placed.data());
        EXPECT_TRUE(plain == one) << ranks << " ranks";
        EXPECT_TRUE(placed == one_placed) << ranks << " ranks";
      }
}

// Ranks that split the rows of the batch.
TEST(EmbeddingByRows, PositionsOfAPartOfTheRows) {
  for (const DType type : kComputeTypes) {
    const Inputs in(type);
    const Tensor sum = Random(4).tensor(DType::fp32, kRows * kChannels);
    for (const std::int64_t rows : {1, 5, 11, 55}) {
      Tensor output(type, sum.numel()), expected(type, sum.numel());
      for (std::int64_t first = 0; first < kRows; first += rows) {
        const PositionShape shape = {
            .first_row = first, .rows = rows, .sequence = kSequence, .channels = kChannels, .type = type};
        add_positions(TestContext(2), shape, static_cast<const float*>(sum.data()) + first * kChannels,
                      in.positions.data(),
                      static_cast<char*>(output.data()) + first * kChannels * bytes_of(type));
      }
      for (std::int64_t i = 0; i < sum.numel(); ++i) {
        const std::int64_t place = i / kChannels % kSequence * kChannels + i % kChannels;
        expected.set(i, static_cast<float>(sum.get(i)) + static_cast<float>(in.positions.get(place)));
      }
      EXPECT_TRUE(output == expected) << rows;
      if (type != DType::fp32) continue;
      Tensor in_place = sum;
      add_positions(TestContext(2),
                    {.rows = kRows, .sequence = kSequence, .channels = kChannels, .type = type},
                    in_place.floats(), in.positions.data(), in_place.data());
      EXPECT_TRUE(in_place == expected);
    }
  }
}

TEST(EmbeddingByRows, GradientsAreTheRowsOfOneRanks) {
  for (const DType type : kComputeTypes)
    for (const float beta : {0.0f, 1.0f}) {
      const Inputs in(type);
      Random random(5);
      const Tensor dy = random.tensor(type, kRows * kChannels);
      const Tensor before =
          beta == 0.0f ? Tensor(type, in.table.numel()) : random.tensor(type, in.table.numel());
      const auto gradient = [&](const EmbeddingShape& shape, Tensor start, int threads) {
        embedding_backward(TestContext(threads, embedding_backward_workspace_bytes(shape, threads)), shape,
                           {.tokens = in.tokens.data(),
                            .output_gradient = dy.data(),
                            .token_gradient = start.data(),
                            .token_beta = beta});
        return start;
      };
      const Tensor one = gradient(whole_shape(type, 0), before, 1);
      for (const std::int64_t ranks : {1, 2, 4, 7, 16})
        for (std::int64_t rank = 0; rank < ranks; ++rank)
          for (const int threads : kThreadCounts) {
            const EmbeddingShape shape = part_shape(type, ranks, rank);
            const Tensor own = gradient(shape, part_of(before, shape), threads);
            Tensor expected = part_of(one, shape);
            const std::int64_t padding = std::max<std::int64_t>(0, kVocabulary - shape.first_token);
            for (std::int64_t i = padding * kChannels; beta == 0.0f && i < expected.numel(); ++i)
              expected.set(i, 0.0);
            EXPECT_TRUE(own == expected) << rank << " of " << ranks;
          }
    }
}

TEST(EmbeddingByRows, RefusesWhatItCannotDo) {
  Tensor t(DType::fp32, 8);
  const EmbeddingShape part = {
      .batch = 1, .sequence = 1, .channels = 1, .vocabulary = 5, .first_token = 3, .table_rows = 3};
  for (const std::int32_t wrong : {-1, 5}) {  // 5 has a row here, which is padding
    EXPECT_THROW(embedding_forward(TestContext(1), part, &wrong, t.data(), nullptr, t.data()), UsageError);
    EXPECT_THROW(embedding_forward_partial(TestContext(1), part, &wrong, t.data(), t.floats()), UsageError);
  }
  const std::int32_t token = 4;
  EmbeddingShape placed = part;
  placed.positions = 1;
  EXPECT_THROW(embedding_forward(TestContext(1), placed, &token, t.data(), t.data(), t.data()), UsageError);
  EmbeddingShape unclear = part;
  unclear.table_rows = 0;
  EXPECT_THROW(embedding_forward(TestContext(1), unclear, &token, t.data(), nullptr, t.data()), UsageError);
  EXPECT_THROW(add_positions(TestContext(1), {.first_row = -1, .rows = 1, .sequence = 1, .channels = 1},
                             t.floats(), t.data(), t.data()),
               UsageError);
  EXPECT_THROW(add_positions(TestContext(1), {.rows = 1, .sequence = 0, .channels = 1}, t.floats(), t.data(),
                             t.data()),
               UsageError);
}

}  // namespace
}  // namespace tessera::kernels::testing
