// softmax.h: ranks that split the vocabulary, against float64 and against cross_entropy.h.
#include "kernels/softmax.h"

#include "kernels/cross_entropy_chunks.h"
#include "tests/kernels/cross_entropy_reference.h"

namespace tessera::kernels::testing {
namespace {

constexpr DeviceType kCpu = DeviceType::cpu;

struct Results {
  Tensor losses, dx, dw;  // the last two of all ranks: dx added in fp32, then rounded
  LossTotal total;
};

// A rank's part of a head: its rows of the weight. Padding has weights of 0.
struct Rank {
  SoftmaxShape shape;
  Tensor weight, dw;
  std::vector<float> logits = {};

  Rank(const CrossEntropyShape& s, const Tensor& whole, int ranks, int rank)
      : shape{.columns = (s.vocabulary + ranks - 1) / ranks,
              .first_column = rank * ((s.vocabulary + ranks - 1) / ranks),
              .vocabulary = s.vocabulary,
              .ranks = ranks,
              .type = s.type},
        weight(s.type, Doubles(static_cast<std::size_t>(shape.columns * s.channels))),
        dw(s.type, shape.columns * s.channels) {
    for (std::int64_t i = 0; i < shape.counted_columns() * s.channels; ++i)
      weight.set(i, whole.get(shape.first_column * s.channels + i));
  }
};

// A step of a head of which `ranks` have a part each, in chunks of rows.
class Step {
 public:
  Step(const CrossEntropyReference& r, const Tensor& x, const Tensor& w, int ranks, int threads, float scale)
      : s_(r.s),
        targets_(r.targets),
        x_(x),
        threads_(threads),
        scale_(scale),
        losses_(DType::fp32, r.s.rows),
        dx_(r.s.type, x.numel()) {
    for (int rank = 0; rank < ranks; ++rank) ranks_.emplace_back(s_, w, ranks, rank);
    float beta = 0.0f;
    for_each_chunk(s_, kCpu, [&](Chunk chunk) {
      run(chunk, beta);
      beta = 1.0f;
    });
  }

  Results results() {
    Results results = {
        losses_, dx_, Tensor(s_.type, s_.vocabulary * s_.channels), {.sum = 1.0, .counted = 1}};
    for (const Rank& rank : ranks_)
      for (std::int64_t i = 0; i < rank.dw.numel(); ++i) {
        const std::int64_t to = rank.shape.first_column * s_.channels + i;
        if (to < results.dw.numel())
          results.dw.set(to, rank.dw.get(i));
        else
          EXPECT_EQ(rank.dw.get(i), 0.0) << "padding";
      }
    total_loss(TestContext(threads_), s_.rows, targets_.data(), losses_.floats(), &results.total);
    return results;
  }

 private:
  void run(Chunk chunk, float beta) {
    const std::int32_t* const targets = targets_.data() + chunk.begin;
    const void* const x = static_cast<const char*>(x_.data()) + chunk.begin * s_.channels * bytes_of(s_.type);
    std::vector<SoftmaxStatistics> gathered;
    for (Rank& rank : ranks_) {
      rank.shape.rows = chunk.rows;
      const auto own = statistics(rank, x, targets);
      gathered.insert(gathered.end(), own.begin(), own.end());
    }
    Doubles sum(static_cast<std::size_t>(chunk.rows * s_.channels));
    for (Rank& rank : ranks_) {
      const Tensor losses = gradients(rank, gathered, targets);
      for (std::int64_t row = 0; row < chunk.rows; ++row) {
        if (&rank == &ranks_[0]) losses_.set(chunk.begin + row, losses.get(row));
        EXPECT_EQ(losses_.get(chunk.begin + row), losses.get(row)) << "ranks have other losses";
      }
      const Doubles part = input_gradient(rank, x, beta);
      for (std::size_t i = 0; i < sum.size(); ++i)
        sum[i] = static_cast<float>(sum[i]) + static_cast<float>(part[i]);
    }
    for (std::size_t i = 0; i < sum.size(); ++i)
      dx_.set(chunk.begin * s_.channels + static_cast<std::int64_t>(i), sum[i]);
  }

  std::vector<SoftmaxStatistics> statistics(Rank& rank, const void* x, const std::int32_t* targets) {
    const LinearShape layer = logits_layer(rank.shape, s_.channels, kCpu);
    rank.logits.assign(static_cast<std::size_t>(logits_bytes(rank.shape, kCpu) / 4), std::nanf(""));
    linear_forward_partial(TestContext(threads_, linear_partial_workspace_bytes(layer, threads_)), layer, x,
                           rank.weight.data(), rank.logits.data());
    for (std::int64_t i = 0; i < rank.shape.rows * rank.shape.columns; ++i)  // on which nothing depends
      if (i % rank.shape.columns >= rank.shape.counted_columns())
        rank.logits[static_cast<std::size_t>(i)] = std::nanf("");
    std::vector<SoftmaxStatistics> result(static_cast<std::size_t>(rank.shape.rows));
    std::memset(static_cast<void*>(result.data()), 0xff, result.size() * sizeof(SoftmaxStatistics));
    softmax_statistics(TestContext(threads_), rank.shape, rank.logits.data(), targets, result.data());
    return result;
  }

  Tensor gradients(Rank& rank, const std::vector<SoftmaxStatistics>& gathered, const std::int32_t* targets) {
    Tensor alone(DType::fp32, rank.shape.rows), losses(DType::fp32, rank.shape.rows);
    softmax_losses(TestContext(threads_), rank.shape, gathered.data(), targets, alone.floats());
    softmax_gradients(TestContext(threads_), rank.shape,
                      {.statistics = gathered.data(),
                       .targets = targets,
                       .scale = scale_,
                       .logits = rank.logits.data(),
                       .losses = losses.floats()});
    EXPECT_TRUE(alone == losses);
    return losses;
  }

  Doubles input_gradient(Rank& rank, const void* x, float beta) {
    const LinearShape layer = gradients_layer(rank.shape, s_.channels, kCpu);
    Tensor dx(DType::fp32, rank.shape.rows * s_.channels);
    linear_backward_input_partial(TestContext(threads_, linear_partial_workspace_bytes(layer, threads_)),
                                  layer, rank.logits.data(), rank.weight.data(), dx.floats());
    linear_backward_weight(TestContext(threads_, linear_workspace_bytes(layer, threads_)), layer,
                           rank.logits.data(), x, beta, rank.dw.data());
    return dx.doubles();
  }

  CrossEntropyShape s_;
  std::vector<std::int32_t> targets_;
  Tensor x_;
  int threads_;
  float scale_;
  Tensor losses_, dx_;
  std::vector<Rank> ranks_;
};

// With one rank the same bits, but of a bf16 input gradient, which is rounded from fp32.
void expect_bits_of_cross_entropy(Results actual, const CrossEntropyReference& r, const Tensor& x,
                                  const Tensor& w, int threads, float scale) {
  Tensor losses(DType::fp32, r.s.rows), dx(r.s.type, x.numel()), dw(r.s.type, w.numel());
  LossTotal total;
  cross_entropy_forward_backward(TestContext(threads, cross_entropy_workspace_bytes(r.s, threads)), r.s,
                                 {.input = x.data(),
                                  .weight = w.data(),
                                  .targets = r.targets.data(),
                                  .scale = scale,
                                  .losses = losses.floats(),
                                  .total = &total,
                                  .input_gradient = dx.data(),
                                  .weight_gradient = dw.data()});
  EXPECT_TRUE(actual.losses == losses);
  EXPECT_EQ(actual.total.sum, total.sum);
  EXPECT_EQ(actual.total.counted, total.counted);
  EXPECT_TRUE(actual.dw == dw);
  if (r.s.type == DType::fp32) {
    EXPECT_TRUE(actual.dx == dx);
  }
}

void check_split(const CrossEntropyShape& s, int threads, float scale) {
  Random random(static_cast<std::uint64_t>(s.rows * 7 + s.vocabulary));
  const CrossEntropyReference r = make_cross_entropy_reference(s, random);
  const Tensor x = random.tensor(s.type, s.rows * s.channels);
  const Tensor w = random.tensor(s.type, s.vocabulary * s.channels, 0.5);
  const CrossEntropyReference::Gradients d = r.backward(x.doubles(), w.doubles(), scale);
  for (const int ranks : {1, 2, 4}) {
    const Results one = Step(r, x, w, ranks, threads, scale).results();
    const std::string what = " of " + std::to_string(ranks) + " ranks";
    expect_close(one.losses, r.losses(x.doubles(), w.doubles()), 5e-6, "losses" + what);
    expect_close(one.dx, d.x, tolerance_of(s.type), "input gradient" + what);
    expect_close(one.dw, d.w, 2 * tolerance_of(s.type), "weight gradient" + what);
    double sum = 0.0;
    for (const double loss : one.losses.doubles()) sum += loss;
    EXPECT_EQ(one.total.sum, sum);
    EXPECT_EQ(one.total.counted, s.rows - std::ranges::count(r.targets, -1));
    if (ranks == 1) expect_bits_of_cross_entropy(one, r, x, w, threads, scale);
  }
}

TEST(Softmax, RanksThatSplitAVocabularyMatchFloat64) {
  for (const DType type : kComputeTypes)
    for (const int threads : kThreadCounts) {
      // The last of 4 ranks has nothing but padding.
      check_split({.rows = 1, .channels = 3, .vocabulary = 5, .type = type}, threads, 1.0f);
      check_split({.rows = 37, .channels = 33, .vocabulary = 131, .type = type}, threads, 0.25f);
      // Blocks of 1024 within a rank's columns. In bf16 most gradients would be far smaller than the rounding
      // of the largest.
      if (type == DType::fp32)
        check_split({.rows = 9, .channels = 16, .vocabulary = 9001, .type = type}, threads, 1.0f);
      // Chunks of 8, 8, 8, 8 and 5 rows, and of one row each.
      check_split({.rows = 37, .channels = 16, .vocabulary = 67, .type = type, .chunk_bytes = 8 * 67 * 4},
                  threads, 2.0f);
      check_split({.rows = 4, .channels = 16, .vocabulary = 67, .type = type, .chunk_bytes = 1}, threads,
                  1.0f);
    }
}

// Logits of one rank, and what becomes of them.
struct Logits {
  SoftmaxShape shape;
  std::vector<std::int32_t> targets;
  std::vector<float> logits;
  std::vector<SoftmaxStatistics> statistics;

  Logits(const SoftmaxShape& s, std::uint64_t seed) : shape(s), statistics(static_cast<std::size_t>(s.rows)) {
    Random random(seed);
    targets = random.tokens(s.rows, s.vocabulary);
    for (std::int64_t i = 0; i < s.rows * s.columns; ++i)
      logits.push_back(static_cast<float>(6.0 * random.normal()));
  }
  float& at(std::int64_t row, std::int64_t column) {
    return logits[static_cast<std::size_t>(row * shape.columns + column)];
  }
  Tensor differentiate(int threads) {
    Tensor losses(DType::fp32, shape.rows);
    softmax_statistics(TestContext(threads), shape, logits.data(), targets.data(), statistics.data());
    softmax_gradients(TestContext(threads), shape,
                      {.statistics = statistics.data(),
                       .targets = targets.data(),
                       .logits = logits.data(),
                       .losses = losses.floats()});
    return losses;
  }
};

TEST(Softmax, ThreadsChangeNoBit) {
  for (const DType type : kComputeTypes) {
    const SoftmaxShape shape = {.rows = 53, .columns = 301, .vocabulary = 299, .type = type};
    Logits one(shape, 1);
    const Tensor losses = one.differentiate(1);
    for (const int threads : {2, 3, 5, kMostThreads}) {
      Logits other(shape, 1);
      EXPECT_TRUE(other.differentiate(threads) == losses);
      EXPECT_EQ(std::memcmp(other.statistics.data(), one.statistics.data(),
                            one.statistics.size() * sizeof(SoftmaxStatistics)),
                0);
      EXPECT_EQ(std::memcmp(other.logits.data(), one.logits.data(),
                            static_cast<std::size_t>(53 * 301 * bytes_of(type))),
                0);
    }
  }
}

TEST(Softmax, StatisticsOfARow) {
  Logits l({.rows = 4, .columns = 5, .first_column = 10, .vocabulary = 14, .ranks = 4}, 2);
  l.targets = {12, 3, -1, 13};
  for (std::int64_t column = 0; column < 5; ++column) l.at(0, column) = static_cast<float>(column) - 2.0f;
  softmax_statistics(TestContext(1), l.shape, l.logits.data(), l.targets.data(), l.statistics.data());
  EXPECT_EQ(l.statistics[0].maximum, 1.0f);  // 2 is of padding
  EXPECT_NEAR(l.statistics[0].sum, 1.0 + std::exp(-1.0) + std::exp(-2.0) + std::exp(-3.0), 1e-6);
  EXPECT_EQ(l.statistics[0].target_logit, 0.0f);
  EXPECT_EQ(l.statistics[1].target_logit, 0.0f) << "another rank's";
  EXPECT_EQ(l.statistics[3].target_logit, l.at(3, 3));
  l.shape.first_column = 15;
  softmax_statistics(TestContext(1), l.shape, l.logits.data(), l.targets.data(), l.statistics.data());
  EXPECT_EQ(l.statistics[0].maximum, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(l.statistics[0].sum, 0.0f);
}

// The maxima of ranks lie further apart than e^x has floats for.
TEST(Softmax, RanksWithMaximaFarApart) {
  const std::int32_t target = 0;
  const SoftmaxStatistics statistics[] = {
      {-200.0f, 3.0f, -201.0f}, {300.0f, 2.0f, 0.0f}, {-1e30f, 7.0f, 0.0f}};
  float loss = 0.0f;
  softmax_losses(TestContext(1), {.rows = 1, .columns = 1, .vocabulary = 3, .ranks = 3}, statistics, &target,
                 &loss);
  EXPECT_NEAR(loss, 300.0 + std::log(2.0) + 201.0, 1e-4);
}

TEST(Softmax, NaNReachesTheLossAndRowsThatAreNotCountedAreZero) {
  for (const DType type : kComputeTypes) {
    Logits l({.rows = 3, .columns = 40, .vocabulary = 40, .type = type}, 3);
    l.at(1, 20) = l.at(2, 20) = std::nanf("");
    l.targets[2] = -1;
    const Tensor losses = l.differentiate(1);
    EXPECT_TRUE(std::isfinite(losses.get(0)));
    EXPECT_TRUE(std::isnan(losses.get(1)));
    EXPECT_EQ(losses.get(2), 0.0);
    Tensor gradients(type, 3 * 40);
    std::memcpy(gradients.data(), l.logits.data(), static_cast<std::size_t>(120 * bytes_of(type)));
    for (std::int64_t i = 0; i < 120; ++i) {
      const double gradient = gradients.get(i);
      EXPECT_TRUE(i < 40 ? std::isfinite(gradient) : i < 80 ? std::isnan(gradient) : gradient == 0.0) << i;
    }
  }
}

TEST(Softmax, RefusesWhatItCannotCompute) {
  const SoftmaxShape good = {.rows = 1, .columns = 2, .vocabulary = 3};
  const auto refuse = [](const SoftmaxShape& shape, std::int32_t target) {
    float logits[2] = {}, loss = 0.0f;
    SoftmaxStatistics statistics[1] = {};
    EXPECT_THROW(softmax_statistics(TestContext(1), shape, logits, &target, statistics), UsageError);
    EXPECT_THROW(softmax_losses(TestContext(1), shape, statistics, &target, &loss), UsageError);
    EXPECT_THROW(
        softmax_gradients(TestContext(1), shape,
                          {.statistics = statistics, .targets = &target, .logits = logits, .losses = &loss}),
        UsageError);
  };
  refuse(good, -2);
  refuse(good, 3);
  SoftmaxShape bad = good;
  bad.type = DType::fp16;
  refuse(bad, 0);
  bad = good;
  bad.columns = 0;
  refuse(bad, 0);
  bad = good;
  bad.ranks = 0;
  refuse(bad, 0);
  bad = good;
  bad.first_column = -1;
  refuse(bad, 0);
}

}  // namespace
}  // namespace tessera::kernels::testing
