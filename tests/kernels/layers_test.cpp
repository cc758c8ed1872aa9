// embedding.h, layer_norm.h and gelu of elementwise.h against float64.
#include "kernels/column_sum.h"
#include "tests/kernels/support.h"

namespace tessera::kernels::testing {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// ------------------------------------------------------------------ gelu

double gelu(double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

double gelu_slope(double x) {
  const double t = std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * std::sqrt(2.0 / M_PI) * (1.0 + 3 * 0.044715 * x * x);
}

TEST(Gelu, ReferenceSlopeMatchesFiniteDifferences) {
  for (double x = -6.0; x < 6.0; x += 0.37)
    EXPECT_NEAR(gelu_slope(x), (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5, 1e-8);
}

TEST(Gelu, MatchesFloat64) {
  for (const DType type : kComputeTypes)
    for (const int threads : kThreadCounts)
      for (const std::int64_t numel : {1, 15, 16, 17, 100, 40001}) {
        Random random(static_cast<std::uint64_t>(numel));
        const Tensor x = random.tensor(type, numel, 3.0), dy = random.tensor(type, numel);
        Tensor y(type, numel), dx(type, numel);
        gelu_forward(TestContext(threads), type, numel, x.data(), y.data());
        gelu_backward(TestContext(threads), type, numel, x.data(), dy.data(), dx.data());
        const double relative = type == DType::fp32 ? 2e-6 : 4e-3;
        for (std::int64_t i = 0; i < numel; ++i) {
          const double value = gelu(x.get(i)), slope = gelu_slope(x.get(i));
          ASSERT_NEAR(y.get(i), value, relative * std::abs(value) + 2e-7) << x.get(i);
          ASSERT_NEAR(dx.get(i), dy.get(i) * slope, relative * std::abs(dy.get(i) * slope) + 2e-6)
              << x.get(i);
        }
        Tensor in_place = x, gradient_in_place = dy;
        gelu_forward(TestContext(threads), type, numel, in_place.data(), in_place.data());
        EXPECT_TRUE(in_place == y);
        gelu_backward(TestContext(threads), type, numel, x.data(), gradient_in_place.data(),
                      gradient_in_place.data());
        EXPECT_TRUE(gradient_in_place == dx);
      }
}

TEST(Gelu, BackwardWithTheBiasHasTheBitsOfBoth) {
  for (const DType type : kComputeTypes)
    for (const std::int64_t rows : {1, 64, 65, 130})
      for (const std::int64_t columns : {1, 40, 2049}) {
        Random random(static_cast<std::uint64_t>(rows * columns));
        const Tensor x = random.tensor(type, rows * columns, 3.0), dy = random.tensor(type, rows * columns);
        const Tensor before = random.tensor(type, columns);
        const std::int64_t scratch = column_sum_workspace_bytes(rows, columns, 1);
        for (const float beta : {0.0f, 1.0f}) {
          Tensor dx(type, rows * columns), bias = beta == 0.0f ? Tensor(type, columns) : before;
          Tensor expected_bias = bias;
          gelu_backward(TestContext(1), type, rows * columns, x.data(), dy.data(), dx.data());
          column_sum(TestContext(1, scratch), rows, columns, type, dx.data(), beta, expected_bias.data());
          for (const int threads : kThreadCounts)
            for (const bool in_place : {false, true}) {
              Tensor actual = in_place ? dy : Tensor(type, rows * columns), actual_bias = bias;
              gelu_backward_bias(TestContext(threads, scratch),
                                 {.rows = rows,
                                  .columns = columns,
                                  .type = type,
                                  .input = x.data(),
                                  .output_gradient = in_place ? actual.data() : dy.data(),
                                  .input_gradient = actual.data(),
                                  .beta = beta,
                                  .bias_gradient = actual_bias.data()});
              EXPECT_TRUE(actual == dx) << rows << " x " << columns;
              EXPECT_TRUE(actual_bias == expected_bias) << rows << " x " << columns;
            }
        }
      }
}

TEST(Gelu, ExtremesAndNaN) {
  const Doubles values = {1e30, -1e30, 100.0, -100.0, 3e38, -3e38, 0.0, std::nan("")};
  const Tensor x(DType::fp32, values), ones(DType::fp32, Doubles(values.size(), 1.0));
  Tensor y(DType::fp32, x.numel()), dx(DType::fp32, x.numel());
  gelu_forward(TestContext(1), DType::fp32, x.numel(), x.data(), y.data());
  gelu_backward(TestContext(1), DType::fp32, x.numel(), x.data(), ones.data(), dx.data());
  for (std::int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(y.get(i), x.get(i) > 0 ? x.get(i) : 0.0);
    EXPECT_EQ(dx.get(i), x.get(i) > 0 ? 1.0 : 0.0);
  }
  EXPECT_EQ(dx.get(6), 0.5);
  EXPECT_TRUE(std::isnan(y.get(7)) && std::isnan(dx.get(7)));
}

// ------------------------------------------------------------------ layer norm

struct NormReference {
  LayerNormShape s;

  struct Row {
    double mean, rstd;
  };
  Row statistics(const Doubles& x, std::int64_t row) const {
    double sum = 0.0, squares = 0.0;
    for (std::int64_t c = 0; c < s.channels; ++c) sum += x[at(row * s.channels + c)];
    const double mean = sum / static_cast<double>(s.channels);
    for (std::int64_t c = 0; c < s.channels; ++c) squares += std::pow(x[at(row * s.channels + c)] - mean, 2);
    return {mean, 1.0 / std::sqrt(squares / static_cast<double>(s.channels) + s.epsilon)};
  }
  Doubles forward(const Doubles& x, const Doubles& gain, const Doubles& bias) const {
    Doubles y(x.size());
    for (std::int64_t i = 0; i < s.rows * s.channels; ++i) {
      const Row row = statistics(x, i / s.channels);
      y[at(i)] = (x[at(i)] - row.mean) * row.rstd * gain[at(i % s.channels)] + bias[at(i % s.channels)];
    }
    return y;
  }
  struct Gradients {
    Doubles x, gain, bias;
  };
  Gradients backward(const Doubles& x, const Doubles& gain, const Doubles& dy) const {
    Gradients d = {Doubles(x.size()), Doubles(gain.size()), Doubles(gain.size())};
    const auto width = static_cast<double>(s.channels);
    for (std::int64_t row = 0; row < s.rows; ++row) {
      const Row statistic = statistics(x, row);
      double sum_g = 0.0, sum_gn = 0.0;
      const auto normal = [&](std::int64_t c) {
        return (x[at(row * s.channels + c)] - statistic.mean) * statistic.rstd;
      };
      for (std::int64_t c = 0; c < s.channels; ++c) {
        const double gradient = dy[at(row * s.channels + c)];
        d.gain[at(c)] += gradient * normal(c);
        d.bias[at(c)] += gradient;
        sum_g += gradient * gain[at(c)];
        sum_gn += gradient * gain[at(c)] * normal(c);
      }
      for (std::int64_t c = 0; c < s.channels; ++c)
        d.x[at(row * s.channels + c)] = statistic.rstd * (dy[at(row * s.channels + c)] * gain[at(c)] -
                                                          sum_g / width - normal(c) * sum_gn / width);
    }
    return d;
  }
};

TEST(LayerNorm, ReferenceGradientsMatchFiniteDifferences) {
  const NormReference r = {{.rows = 3, .channels = 5}};
  Random random(1);
  const Doubles x = random.tensor(DType::fp32, 15).doubles(), gain = random.tensor(DType::fp32, 5).doubles();
  const Doubles bias = random.tensor(DType::fp32, 5).doubles(), dy = random.tensor(DType::fp32, 15).doubles();
  const NormReference::Gradients d = r.backward(x, gain, dy);
  const auto loss = [&](const Doubles& a, const Doubles& b, const Doubles& c) {
    return dot(dy, r.forward(a, b, c));
  };
  expect_close(d.x, finite_differences(x, [&](const Doubles& v) { return loss(v, gain, bias); }), 1e-7, "x");
  expect_close(d.gain, finite_differences(gain, [&](const Doubles& v) { return loss(x, v, bias); }), 1e-7,
               "gain");
  expect_close(d.bias, finite_differences(bias, [&](const Doubles& v) { return loss(x, gain, v); }), 1e-7,
               "bias");
}

struct NormResults {
  Tensor output, mean, rstd, dx, dgain, dbias;
  bool operator==(const NormResults&) const = default;
};

struct NormInputs {
  Tensor x, gain, bias, dy, residual_gradient;
};

NormResults run_norm(const LayerNormShape& s, int threads, const NormInputs& in, bool residual, float beta) {
  const std::int64_t numel = s.rows * s.channels;
  NormResults r = {Tensor(s.type, numel),
                   Tensor(DType::fp32, s.rows),
                   Tensor(DType::fp32, s.rows),
                   Tensor(s.type, numel),
                   beta == 0.0f ? Tensor(s.type, s.channels) : in.gain,
                   beta == 0.0f ? Tensor(s.type, s.channels) : in.bias};
  layer_norm_forward(TestContext(threads), s,
                     {.input = in.x.data(),
                      .gain = in.gain.data(),
                      .bias = in.bias.data(),
                      .output = r.output.data(),
                      .mean = r.mean.floats(),
                      .rstd = r.rstd.floats()});
  const TestContext context(threads, layer_norm_backward_workspace_bytes(s, threads));
  layer_norm_backward(context, s,
                      {.input = in.x.data(),
                       .mean = r.mean.floats(),
                       .rstd = r.rstd.floats(),
                       .gain = in.gain.data(),
                       .output_gradient = in.dy.data(),
                       .residual_gradient = residual ? in.residual_gradient.data() : nullptr,
                       .input_gradient = r.dx.data(),
                       .gain_gradient = r.dgain.data(),
                       .bias_gradient = r.dbias.data(),
                       .beta = beta});
  return r;
}

TEST(LayerNorm, MatchesFloat64) {
  struct Extents {
    std::int64_t rows, channels;
  };
  for (const DType type : kComputeTypes)
    for (const Extents e :
         {Extents{1, 1}, Extents{3, 7}, Extents{65, 16}, Extents{130, 33}, Extents{200, 768}})
      for (const bool residual : {false, true}) {
        const LayerNormShape s = {.rows = e.rows, .channels = e.channels, .type = type};
        Random random(static_cast<std::uint64_t>(e.rows));
        const std::int64_t numel = s.rows * s.channels;
        const NormInputs in = {random.tensor(type, numel, 2.0, 1.0), random.tensor(type, s.channels),
                               random.tensor(type, s.channels), random.tensor(type, numel),
                               random.tensor(type, numel)};
        const float beta = residual ? 1.0f : 0.0f;
        const NormResults one = run_norm(s, 1, in, residual, beta);
        const NormReference reference = {s};
        NormReference::Gradients d = reference.backward(in.x.doubles(), in.gain.doubles(), in.dy.doubles());
        if (residual) d.x = sum_of(d.x, in.residual_gradient.doubles());
        if (residual) d.gain = sum_of(d.gain, in.gain.doubles());
        if (residual) d.bias = sum_of(d.bias, in.bias.doubles());
        const double tolerance = tolerance_of(type);
        expect_close(one.output, reference.forward(in.x.doubles(), in.gain.doubles(), in.bias.doubles()),
                     tolerance, "output");
        if (s.channels > 1) expect_close(one.dx, d.x, tolerance, "input gradient");
        expect_close(one.dgain, d.gain, tolerance, "gain gradient");
        expect_close(one.dbias, d.bias, tolerance, "bias gradient");
        EXPECT_TRUE(one == run_norm(s, 2, in, residual, beta)) << "threads change bits";
        EXPECT_TRUE(one == run_norm(s, 3, in, residual, beta)) << "threads change bits";
      }
}

TEST(LayerNorm, ResidualIsAddedRoundedAndNormalised) {
  for (const DType type : kComputeTypes) {
    const LayerNormShape s = {.rows = 9, .channels = 50, .type = type};
    Random random(8);
    const Tensor a = random.tensor(type, 450), b = random.tensor(type, 450);
    const Tensor gain = random.tensor(type, 50), bias = random.tensor(type, 50);
    Tensor fused_sum(type, 450), fused(type, 450), sum(type, 450), separate(type, 450),
        statistics(DType::fp32, 9);
    layer_norm_forward(TestContext(2), s,
                       {.input = a.data(),
                        .residual = b.data(),
                        .sum = fused_sum.data(),
                        .gain = gain.data(),
                        .bias = bias.data(),
                        .output = fused.data(),
                        .mean = statistics.floats(),
                        .rstd = statistics.floats()});
    add(TestContext(1), type, 450, a.data(), b.data(), sum.data());
    layer_norm_forward(TestContext(1), s,
                       {.input = sum.data(),
                        .gain = gain.data(),
                        .bias = bias.data(),
                        .output = separate.data(),
                        .mean = statistics.floats(),
                        .rstd = statistics.floats()});
    EXPECT_TRUE(fused_sum == sum);
    EXPECT_TRUE(fused == separate);
  }
}

TEST(LayerNorm, InPlaceAndWithoutParameterGradients) {
  for (const DType type : kComputeTypes) {
    const LayerNormShape s = {.rows = 70, .channels = 50, .type = type};
    Random random(9);
    const NormInputs in = {random.tensor(type, 3500), random.tensor(type, 50), random.tensor(type, 50),
                           random.tensor(type, 3500), random.tensor(type, 3500)};
    NormResults expected = run_norm(s, 1, in, true, 0.0f);
    Tensor over_gradient = in.dy, over_residual = in.residual_gradient;
    LayerNormBackward arguments = {.input = in.x.data(),
                                   .mean = expected.mean.floats(),
                                   .rstd = expected.rstd.floats(),
                                   .gain = in.gain.data(),
                                   .output_gradient = over_gradient.data(),
                                   .residual_gradient = in.residual_gradient.data(),
                                   .input_gradient = over_gradient.data()};
    layer_norm_backward(TestContext(1), s, arguments);  // no parameter gradients: no workspace either
    EXPECT_TRUE(over_gradient == expected.dx);
    arguments.output_gradient = in.dy.data();
    arguments.residual_gradient = over_residual.data();
    arguments.input_gradient = over_residual.data();
    layer_norm_backward(TestContext(1), s, arguments);
    EXPECT_TRUE(over_residual == expected.dx);
  }
}

// As a schedule that runs weight gradients apart asks for them: without the gain, which they do not need.
TEST(LayerNorm, GradientsOfTheParametersAlone) {
  for (const DType type : kComputeTypes)
    for (const float beta : {0.0f, 1.0f})
      for (const int threads : {1, 3}) {
        const LayerNormShape s = {.rows = 130, .channels = 50, .type = type};
        Random random(10);
        const NormInputs in = {random.tensor(type, 6500), random.tensor(type, 50), random.tensor(type, 50),
                               random.tensor(type, 6500), random.tensor(type, 6500)};
        NormResults expected = run_norm(s, 2, in, true, beta);
        Tensor dgain = beta == 0.0f ? Tensor(type, 50) : in.gain;
        Tensor dbias = beta == 0.0f ? Tensor(type, 50) : in.bias;
        layer_norm_backward(TestContext(threads, layer_norm_backward_workspace_bytes(s, threads)), s,
                            {.input = in.x.data(),
                             .mean = expected.mean.floats(),
                             .rstd = expected.rstd.floats(),
                             .output_gradient = in.dy.data(),
                             .gain_gradient = dgain.data(),
                             .bias_gradient = dbias.data(),
                             .beta = beta});
        EXPECT_TRUE(dgain == expected.dgain);
        EXPECT_TRUE(dbias == expected.dbias);
      }
}

// ------------------------------------------------------------------ embedding

TEST(Embedding, ForwardAddsTokenAndPosition) {
  for (const DType type : kComputeTypes)
    for (const int threads : kThreadCounts) {
      const EmbeddingShape s = {
          .batch = 3, .sequence = 11, .channels = 21, .vocabulary = 17, .positions = 12, .type = type};
      Random random(1);
      const Tensor table = random.tensor(type, 17 * 21), positions = random.tensor(type, 12 * 21);
      const auto tokens = random.tokens(33, 17);
      Tensor output(type, 33 * 21);
      embedding_forward(TestContext(threads), s, tokens.data(), table.data(), positions.data(),
                        output.data());
      Doubles expected;
      for (std::int64_t i = 0; i < 33 * 21; ++i)
        expected.push_back(table.get(tokens[at(i / 21)] * 21 + i % 21) +
                           positions.get(i / 21 % 11 * 21 + i % 21));
      EXPECT_TRUE(output == Tensor(type, expected));
    }
}

struct EmbeddingGradients {
  Tensor tokens, positions;
  bool operator==(const EmbeddingGradients&) const = default;
};

TEST(Embedding, BackwardMatchesFloat64WhateverTheThreads) {
  for (const DType type : kComputeTypes)
    for (const float beta : {0.0f, 1.0f}) {
      const EmbeddingShape s = {
          .batch = 5, .sequence = 37, .channels = 21, .vocabulary = 90, .positions = 40, .type = type};
      Random random(2);
      const Tensor dy = random.tensor(type, 5 * 37 * 21);
      auto tokens = random.tokens(5 * 37, 60);  // tokens from 60 on do not occur
      tokens[3] = 89;                           // except the last
      const EmbeddingGradients before = {random.tensor(type, 90 * 21), random.tensor(type, 40 * 21)};
      const EmbeddingGradients poisoned = {Tensor(type, 90 * 21), Tensor(type, 40 * 21)};
      const auto run = [&](int threads) {
        EmbeddingGradients d = beta == 0.0f ? poisoned : before;
        const TestContext context(threads, embedding_backward_workspace_bytes(s, threads));
        embedding_backward(context, s,
                           {.tokens = tokens.data(),
                            .output_gradient = dy.data(),
                            .token_gradient = d.tokens.data(),
                            .token_beta = beta,
                            .position_gradient = d.positions.data(),
                            .position_beta = beta});
        return d;
      };
      Doubles token_sums(90 * 21), position_sums(40 * 21);
      for (std::int64_t i = 0; i < dy.numel(); ++i) {
        token_sums[at(tokens[at(i / 21)] * 21 + i % 21)] += dy.get(i);
        position_sums[at(i / 21 % 37 * 21 + i % 21)] += dy.get(i);
      }
      if (beta != 0.0f) token_sums = sum_of(token_sums, before.tokens.doubles());
      if (beta != 0.0f) position_sums = sum_of(position_sums, before.positions.doubles());
      const EmbeddingGradients one = run(1);
      // A table row is rounded once, so bf16 is as good as half a unit in its last place.
      const double relative = type == DType::fp32 ? 1e-6 : 4e-3;
      for (std::size_t i = 0; i < token_sums.size(); ++i)
        ASSERT_NEAR(one.tokens.get(static_cast<std::int64_t>(i)), token_sums[i],
                    relative * std::abs(token_sums[i]) + 2e-6);
      for (std::size_t i = 0; i < position_sums.size(); ++i)
        ASSERT_NEAR(one.positions.get(static_cast<std::int64_t>(i)), position_sums[i],
                    relative * std::abs(position_sums[i]) + 2e-6);
      for (const int threads : {2, 3, 5}) EXPECT_TRUE(one == run(threads)) << "threads change bits";
    }
}

TEST(Embedding, RefusesWrongTokens) {
  const EmbeddingShape s = {.batch = 1, .sequence = 2, .channels = 1, .vocabulary = 3, .positions = 2};
  Tensor t(DType::fp32, 3);
  for (const std::int32_t wrong : {-1, 3}) {
    const std::int32_t tokens[] = {0, wrong};
    EXPECT_THROW(embedding_forward(TestContext(1), s, tokens, t.data(), t.data(), t.data()), UsageError);
  }
  EmbeddingShape longer = s;
  longer.sequence = 3;
  const std::int32_t tokens[] = {0, 0, 0};
  EXPECT_THROW(embedding_forward(TestContext(1), longer, tokens, t.data(), t.data(), t.data()), UsageError);
}

}  // namespace
}  // namespace tessera::kernels::testing
