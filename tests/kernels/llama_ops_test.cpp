// rms_norm.h, rotary.h and swiglu.h against float64.
#include "kernels/rotary_math.h"
#include "tests/kernels/support.h"

namespace tessera::kernels::testing {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Element by element: as good as one rounding to the type.
void expect_rounded(const Tensor& actual, const Doubles& expected, const std::string& what) {
  ASSERT_EQ(actual.numel(), static_cast<std::int64_t>(expected.size())) << what;
  const double relative = actual.type() == DType::fp32 ? 2e-6 : 4e-3;
  for (std::int64_t i = 0; i < actual.numel(); ++i)
    ASSERT_NEAR(actual.get(i), expected[at(i)], relative * std::abs(expected[at(i)]) + 2e-6)
        << what << "[" << i << "]";
}

// ------------------------------------------------------------------ RMS norm

struct RmsReference {
  RmsNormShape s;

  double rstd(const Doubles& x, std::int64_t row) const {
    double squares = 0.0;
    for (std::int64_t c = 0; c < s.channels; ++c) squares += std::pow(x[at(row * s.channels + c)], 2);
    return 1.0 / std::sqrt(squares / static_cast<double>(s.channels) + static_cast<double>(s.epsilon));
  }
  Doubles forward(const Doubles& x, const Doubles& gain) const {
    Doubles y(x.size());
    for (std::int64_t i = 0; i < s.rows * s.channels; ++i)
      y[at(i)] = x[at(i)] * rstd(x, i / s.channels) * gain[at(i % s.channels)];
    return y;
  }
  struct Gradients {
    Doubles x, gain;
  };
  Gradients backward(const Doubles& x, const Doubles& gain, const Doubles& dy) const {
    Gradients d = {Doubles(x.size()), Doubles(gain.size())};
    for (std::int64_t row = 0; row < s.rows; ++row) {
      const double scale = rstd(x, row);
      double mean = 0.0;
      for (std::int64_t c = 0; c < s.channels; ++c) {
        const std::size_t i = at(row * s.channels + c);
        d.gain[at(c)] += dy[i] * x[i] * scale;
        mean += dy[i] * gain[at(c)] * x[i] * scale / static_cast<double>(s.channels);
      }
      for (std::int64_t c = 0; c < s.channels; ++c) {
        const std::size_t i = at(row * s.channels + c);
        d.x[i] = scale * (dy[i] * gain[at(c)] - x[i] * scale * mean);
      }
    }
    return d;
  }
};

TEST(RmsNorm, ReferenceGradientsMatchFiniteDifferences) {
  const RmsReference r = {{.rows = 3, .channels = 5}};
  Random random(1);
  const Doubles x = random.tensor(DType::fp32, 15).doubles(), gain = random.tensor(DType::fp32, 5).doubles();
  const Doubles dy = random.tensor(DType::fp32, 15).doubles();
  const RmsReference::Gradients d = r.backward(x, gain, dy);
  expect_close(d.x, finite_differences(x, [&](const Doubles& v) { return dot(dy, r.forward(v, gain)); }),
               1e-7, "x");
  expect_close(d.gain, finite_differences(gain, [&](const Doubles& v) { return dot(dy, r.forward(x, v)); }),
               1e-7, "gain");
}

struct RmsInputs {
  Tensor x, gain, dy, residual_gradient;
};

struct RmsResults {
  Tensor output, rstd, dx, dgain;
  bool operator==(const RmsResults&) const = default;
};

RmsResults run_rms(const RmsNormShape& s, int threads, const RmsInputs& in, bool residual, float beta) {
  RmsResults r = {Tensor(s.type, in.x.numel()), Tensor(DType::fp32, s.rows), Tensor(s.type, in.x.numel()),
                  beta == 0.0f ? Tensor(s.type, s.channels) : in.gain};
  rms_norm_forward(
      TestContext(threads), s,
      {.input = in.x.data(), .gain = in.gain.data(), .output = r.output.data(), .rstd = r.rstd.floats()});
  const TestContext context(threads, rms_norm_backward_workspace_bytes(s, threads));
  rms_norm_backward(context, s,
                    {.input = in.x.data(),
                     .rstd = r.rstd.floats(),
                     .gain = in.gain.data(),
                     .output_gradient = in.dy.data(),
                     .residual_gradient = residual ? in.residual_gradient.data() : nullptr,
                     .input_gradient = r.dx.data(),
                     .gain_gradient = r.dgain.data(),
                     .beta = beta});
  return r;
}

TEST(RmsNorm, MatchesFloat64) {
  struct Extents {
    std::int64_t rows, channels;
  };
  for (const DType type : kComputeTypes)
    for (const Extents e :
         {Extents{1, 2}, Extents{3, 7}, Extents{65, 16}, Extents{130, 33}, Extents{90, 768}})
      for (const bool residual : {false, true}) {
        const RmsNormShape s = {.rows = e.rows, .channels = e.channels, .type = type, .epsilon = 1e-3f};
        Random random(static_cast<std::uint64_t>(e.rows));
        const std::int64_t numel = s.rows * s.channels;
        const RmsInputs in = {random.tensor(type, numel, 2.0, 1.0), random.tensor(type, s.channels),
                              random.tensor(type, numel), random.tensor(type, numel)};
        const float beta = residual ? 1.0f : 0.0f;
        const RmsResults one = run_rms(s, 1, in, residual, beta);
        RmsReference::Gradients d =
            RmsReference{s}.backward(in.x.doubles(), in.gain.doubles(), in.dy.doubles());
        if (residual) d.x = sum_of(d.x, in.residual_gradient.doubles());
        if (residual) d.gain = sum_of(d.gain, in.gain.doubles());
        const double tolerance = type == DType::fp32 ? 2e-5 : 0.04;
        expect_rounded(one.output, RmsReference{s}.forward(in.x.doubles(), in.gain.doubles()), "output");
        expect_close(one.dx, d.x, tolerance, "input gradient");
        expect_close(one.dgain, d.gain, tolerance, "gain gradient");
        EXPECT_TRUE(one == run_rms(s, 2, in, residual, beta)) << "threads change bits";
        EXPECT_TRUE(one == run_rms(s, 3, in, residual, beta)) << "threads change bits";
      }
}

TEST(RmsNorm, ResidualIsAddedRoundedAndNormalised) {
  for (const DType type : kComputeTypes) {
    const RmsNormShape s = {.rows = 9, .channels = 50, .type = type};
    Random random(8);
    const Tensor a = random.tensor(type, 450), b = random.tensor(type, 450), gain = random.tensor(type, 50);
    Tensor sum(type, 450), fused(type, 450), separate(type, 450), rstd(DType::fp32, 9);
    Tensor fused_sum = a;  // in place
    rms_norm_forward(TestContext(2), s,
                     {.input = fused_sum.data(),
                      .residual = b.data(),
                      .sum = fused_sum.data(),
                      .gain = gain.data(),
                      .output = fused.data(),
                      .rstd = rstd.floats()});
    add(TestContext(1), type, 450, a.data(), b.data(), sum.data());
    rms_norm_forward(
        TestContext(1), s,
        {.input = sum.data(), .gain = gain.data(), .output = separate.data(), .rstd = rstd.floats()});
    EXPECT_TRUE(fused_sum == sum);
    EXPECT_TRUE(fused == separate);
  }
}

TEST(RmsNorm, InPlaceAndWithoutGainGradient) {
  for (const DType type : kComputeTypes) {
    const RmsNormShape s = {.rows = 70, .channels = 50, .type = type};
    Random random(9);
    const RmsInputs in = {random.tensor(type, 3500), random.tensor(type, 50), random.tensor(type, 3500),
                          random.tensor(type, 3500)};
    RmsResults expected = run_rms(s, 1, in, true, 0.0f);
    Tensor over_gradient = in.dy, over_residual = in.residual_gradient;
    RmsNormBackward arguments = {.input = in.x.data(),
                                 .rstd = expected.rstd.floats(),
                                 .gain = in.gain.data(),
                                 .output_gradient = over_gradient.data(),
                                 .residual_gradient = in.residual_gradient.data(),
                                 .input_gradient = over_gradient.data()};
    rms_norm_backward(TestContext(1), s, arguments);  // no gain gradient: no workspace either
    EXPECT_TRUE(over_gradient == expected.dx);
    arguments.output_gradient = in.dy.data();
    arguments.residual_gradient = over_residual.data();
    arguments.input_gradient = over_residual.data();
    rms_norm_backward(TestContext(1), s, arguments);
    EXPECT_TRUE(over_residual == expected.dx);
  }
}

TEST(RmsNorm, TheGradientOfTheGainAlone) {
  for (const DType type : kComputeTypes)
    for (const float beta : {0.0f, 1.0f})
      for (const int threads : {1, 3}) {
        const RmsNormShape s = {.rows = 130, .channels = 50, .type = type};
        Random random(10);
        const RmsInputs in = {random.tensor(type, 6500), random.tensor(type, 50), random.tensor(type, 6500),
                              random.tensor(type, 6500)};
        RmsResults expected = run_rms(s, 2, in, true, beta);
        Tensor dgain = beta == 0.0f ? Tensor(type, 50) : in.gain;
        rms_norm_backward(TestContext(threads, rms_norm_backward_workspace_bytes(s, threads)), s,
                          {.input = in.x.data(),
                           .rstd = expected.rstd.floats(),
                           .output_gradient = in.dy.data(),
                           .gain_gradient = dgain.data(),
                           .beta = beta});
        EXPECT_TRUE(dgain == expected.dgain);
      }
}

TEST(RmsNorm, RefusesWhatDoesNotGoTogether) {
  const RmsNormShape s = {.rows = 1, .channels = 2};
  Tensor t(s.type, 2), rstd(DType::fp32, 1);
  EXPECT_THROW(rms_norm_forward(TestContext(1), s,
                                {.input = t.data(),
                                 .residual = t.data(),
                                 .gain = t.data(),
                                 .output = t.data(),
                                 .rstd = rstd.floats()}),
               UsageError);
  const TestContext small(1, rms_norm_backward_workspace_bytes(s, 1) - 1);
  EXPECT_THROW(rms_norm_backward(small, s,
                                 {.input = t.data(),
                                  .rstd = rstd.floats(),
                                  .gain = t.data(),
                                  .output_gradient = t.data(),
                                  .input_gradient = t.data(),
                                  .gain_gradient = t.data()}),
               UsageError);
}

// ------------------------------------------------------------------ rotary

TEST(RotaryMath, AnglesMatchTheMathLibrary) {
  for (const float frequency : {1.0f, 0.75f, 0.1f, 0.0003f, 3.7e-6f})
    for (std::int64_t place = 0; place < 200'000; place += place < 3000 ? 1 : 997) {
      const double angle = static_cast<double>(static_cast<float>(place) * frequency);
      const Rotation rotation = rotation_of(place, frequency);
      ASSERT_NEAR(rotation.cosine, std::cos(angle), 4e-8) << place << " × " << frequency;
      ASSERT_NEAR(rotation.sine, std::sin(angle), 4e-8) << place << " × " << frequency;
    }
}

TEST(RotaryMath, FrequenciesFallGeometrically) {
  const std::vector<float> frequencies = rotary_frequencies(64, 10000.0);
  ASSERT_EQ(frequencies.size(), 32u);
  for (std::size_t i = 0; i < 32; ++i)
    EXPECT_NEAR(frequencies[i] * std::pow(10000.0, static_cast<double>(i) / 32.0), 1.0, 1e-7);
}

// Waves of up to 2048 tokens stay, those of 8192 and more are 32 times as long, those between lie between.
TEST(RotaryMath, ScalingStretchesLongWaves) {
  const RotaryScaling scaling = {
      .factor = 32.0, .low_frequency = 1.0, .high_frequency = 4.0, .original_context = 8192.0};
  const std::vector<float> plain = rotary_frequencies(128, 500000.0);
  const std::vector<float> scaled = rotary_frequencies(128, 500000.0, scaling);
  int kept = 0, stretched = 0, mixed = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double wave = 2.0 * M_PI / plain[i];
    const double ratio = plain[i] / scaled[i];
    if (wave < 2048.0) {
      EXPECT_EQ(scaled[i], plain[i]);
      ++kept;
    } else if (wave > 8192.0) {
      EXPECT_NEAR(ratio, 32.0, 1e-5);
      ++stretched;
    } else {
      const double smooth = (8192.0 / wave - 1.0) / 3.0;
      EXPECT_NEAR(scaled[i], (1.0 - smooth) * plain[i] / 32.0 + smooth * plain[i], 1e-7 * plain[i]);
      ++mixed;
    }
  }
  EXPECT_GT(kept, 10);
  EXPECT_GT(stretched, 10);
  EXPECT_GT(mixed, 2);
}

struct RotaryReference {
  RotaryShape s;
  std::vector<float> frequencies;

  Doubles rotate(Doubles x, double direction) const {
    const std::int64_t half = s.head_channels / 2;
    for (std::int64_t row = 0; row < s.batch * s.sequence; ++row)
      for (std::int64_t head = 0; head < s.heads; ++head)
        for (std::int64_t i = 0; i < half; ++i) {
          const double angle = direction * static_cast<double>(row % s.sequence) * frequencies[at(i)];
          double& a = x[at(row * s.row_numel + head * s.head_channels + i)];
          double& b = x[at(row * s.row_numel + head * s.head_channels + half + i)];
          const double turned = a * std::cos(angle) - b * std::sin(angle);
          b = b * std::cos(angle) + a * std::sin(angle);
          a = turned;
        }
    return x;
  }
};

TEST(Rotary, MatchesFloat64AndLeavesValuesAlone) {
  struct Extents {
    std::int64_t batch, sequence, heads, head_channels, row_numel;
  };
  for (const DType type : kComputeTypes)
    for (const Extents e : {Extents{1, 1, 1, 2, 2}, Extents{2, 5, 3, 6, 30}, Extents{3, 150, 6, 64, 512},
                            Extents{1, 70, 2, 40, 81}}) {
      const RotaryShape s = {e.batch, e.sequence, e.heads, e.head_channels, e.row_numel, type};
      const RotaryReference reference = {s, rotary_frequencies(s.head_channels, 10000.0)};
      Random random(static_cast<std::uint64_t>(e.sequence));
      const Tensor x = random.tensor(type, s.batch * s.sequence * s.row_numel);
      const auto run = [&](int threads, bool back) {
        Tensor t = x;
        const TestContext context(threads, rotary_workspace_bytes(s));
        (back ? rotary_backward : rotary_forward)(context, s, reference.frequencies.data(), t.data());
        return t;
      };
      for (const bool back : {false, true}) {
        const Tensor one = run(1, back);
        expect_close(one, reference.rotate(x.doubles(), back ? -1.0 : 1.0),
                     type == DType::fp32 ? 1e-5 : 0.025, back ? "backward" : "forward");
        for (std::int64_t i = 0; i < x.numel(); ++i)
          if (i % s.row_numel >= s.heads * s.head_channels) {
            ASSERT_EQ(one.get(i), x.get(i));
          }
        EXPECT_TRUE(one == run(2, back)) << "threads change bits";
        EXPECT_TRUE(one == run(3, back)) << "threads change bits";
      }
    }
}

// A rotation is linear and orthogonal: its gradient is the rotation back.
TEST(Rotary, BackwardIsTheGradient) {
  const RotaryShape s = {.batch = 1, .sequence = 4, .heads = 2, .head_channels = 4, .row_numel = 9};
  const RotaryReference reference = {s, rotary_frequencies(4, 100.0)};
  Random random(3);
  const Doubles x = random.tensor(DType::fp32, 36).doubles();
  const Tensor dy = random.tensor(DType::fp32, 36);
  Tensor dx = dy;
  const TestContext context(1, rotary_workspace_bytes(s));
  rotary_backward(context, s, reference.frequencies.data(), dx.data());
  expect_close(
      dx,
      finite_differences(x, [&](const Doubles& v) { return dot(dy.doubles(), reference.rotate(v, 1.0)); }),
      1e-6, "gradient");
}

// What rotation is for: scores depend on the distance of two tokens, not on where they are.
TEST(Rotary, ScoresDependOnDistanceOnly) {
  const std::int64_t channels = 16;
  const RotaryShape s = {
      .batch = 1, .sequence = 60, .heads = 2, .head_channels = channels, .row_numel = 2 * channels};
  const std::vector<float> frequencies = rotary_frequencies(channels, 10000.0);
  Random random(4);
  const Doubles one_row = random.tensor(DType::fp32, 2 * channels).doubles();
  Doubles rows;
  for (int row = 0; row < 60; ++row) rows.insert(rows.end(), one_row.begin(), one_row.end());
  Tensor t(DType::fp32, rows);
  const TestContext context(1, rotary_workspace_bytes(s));
  rotary_forward(context, s, frequencies.data(), t.data());
  const auto score = [&](std::int64_t query, std::int64_t key) {
    double sum = 0.0;
    for (std::int64_t c = 0; c < channels; ++c)
      sum += t.get(query * 2 * channels + c) * t.get(key * 2 * channels + channels + c);
    return sum;
  };
  for (std::int64_t shift = 1; shift < 40; ++shift)
    EXPECT_NEAR(score(12 + shift, 5 + shift), score(12, 5), 1e-5);
  EXPECT_GT(std::abs(score(20, 5) - score(12, 5)), 1e-3);
}

TEST(Rotary, RefusesBadShapesAndSmallWorkspaces) {
  RotaryShape s = {.batch = 1, .sequence = 2, .heads = 1, .head_channels = 3, .row_numel = 4};
  const float frequencies[2] = {1.0f, 0.5f};
  Tensor t(DType::fp32, 8);
  EXPECT_THROW(rotary_forward(TestContext(1, 64), s, frequencies, t.data()), UsageError);
  s.head_channels = 4;
  EXPECT_THROW(rotary_forward(TestContext(1, 63), s, frequencies, t.data()), UsageError);
  s.row_numel = 3;
  EXPECT_THROW(rotary_forward(TestContext(1, 64), s, frequencies, t.data()), UsageError);
}

// ------------------------------------------------------------------ SwiGLU

double silu(double x) { return x / (1.0 + std::exp(-x)); }

struct SwigluReference {
  SwigluShape s;

  Doubles forward(const Doubles& gate_up) const {
    Doubles y;
    for (std::int64_t row = 0; row < s.rows; ++row)
      for (std::int64_t i = 0; i < s.hidden; ++i)
        y.push_back(silu(gate_up[at(row * 2 * s.hidden + i)]) * gate_up[at((row * 2 + 1) * s.hidden + i)]);
    return y;
  }
  Doubles backward(const Doubles& gate_up, const Doubles& dy) const {
    Doubles d(gate_up.size());
    for (std::int64_t i = 0; i < s.rows * s.hidden; ++i) {
      const std::size_t gate = at(i / s.hidden * 2 * s.hidden + i % s.hidden), up = gate + at(s.hidden);
      const double x = gate_up[gate], sigmoid = 1.0 / (1.0 + std::exp(-x));
      d[gate] = dy[at(i)] * gate_up[up] * (sigmoid + x * sigmoid * (1.0 - sigmoid));
      d[up] = dy[at(i)] * silu(x);
    }
    return d;
  }
};

TEST(Swiglu, ReferenceGradientMatchesFiniteDifferences) {
  const SwigluReference r = {{.rows = 2, .hidden = 3}};
  Random random(1);
  const Doubles x = random.tensor(DType::fp32, 12, 2.0).doubles(),
                dy = random.tensor(DType::fp32, 6).doubles();
  expect_close(r.backward(x, dy),
               finite_differences(x, [&](const Doubles& v) { return dot(dy, r.forward(v)); }), 1e-8,
               "gradient");
}

TEST(Swiglu, MatchesFloat64) {
  struct Extents {
    std::int64_t rows, hidden;
  };
  for (const DType type : kComputeTypes)
    for (const Extents e :
         {Extents{1, 1}, Extents{3, 15}, Extents{7, 16}, Extents{50, 33}, Extents{40, 1100}}) {
      const SwigluShape s = {.rows = e.rows, .hidden = e.hidden, .type = type};
      Random random(static_cast<std::uint64_t>(e.hidden));
      const Tensor x = random.tensor(type, s.rows * 2 * s.hidden, 3.0),
                   dy = random.tensor(type, s.rows * s.hidden);
      const auto run = [&](int threads) {
        std::pair<Tensor, Tensor> r = {Tensor(type, dy.numel()), Tensor(type, x.numel())};
        swiglu_forward(TestContext(threads), s, x.data(), r.first.data());
        swiglu_backward(TestContext(threads), s, x.data(), dy.data(), r.second.data());
        return r;
      };
      const auto one = run(1);
      expect_rounded(one.first, SwigluReference{s}.forward(x.doubles()), "output");
      expect_rounded(one.second, SwigluReference{s}.backward(x.doubles(), dy.doubles()), "gradient");
      EXPECT_TRUE(one == run(2)) << "threads change bits";
      Tensor in_place = x;
      swiglu_backward(TestContext(1), s, in_place.data(), dy.data(), in_place.data());
      EXPECT_TRUE(in_place == one.second);
    }
}

TEST(Swiglu, ExtremesAndNaN) {
  const Doubles gates = {1e30, -1e30, 100.0, -100.0, 3e38, -3e38, 0.0, std::nan("")};
  Doubles both = gates;
  both.insert(both.end(), gates.size(), 1.0);
  const SwigluShape s = {.rows = 1, .hidden = 8};
  const Tensor x(DType::fp32, both), ones(DType::fp32, Doubles(8, 1.0));
  Tensor y(DType::fp32, 8), d(DType::fp32, 16);
  swiglu_forward(TestContext(1), s, x.data(), y.data());
  swiglu_backward(TestContext(1), s, x.data(), ones.data(), d.data());
  for (std::int64_t i = 0; i < 6; ++i) {
    const double expected = x.get(i) > 0 ? x.get(i) : 0.0;
    EXPECT_NEAR(y.get(i), expected, 1e-40);
    EXPECT_NEAR(d.get(i), x.get(i) > 0 ? 1.0 : 0.0, 1e-40);
    EXPECT_NEAR(d.get(8 + i), expected, 1e-40);
  }
  EXPECT_EQ(d.get(6), 0.5);
  EXPECT_TRUE(std::isnan(y.get(7)) && std::isnan(d.get(7)) && std::isnan(d.get(15)));
}

// ------------------------------------------------------------------ embedding without positions

TEST(Embedding, WithoutPositionsRowsAreCopied) {
  for (const DType type : kComputeTypes) {
    const EmbeddingShape s = {
        .batch = 3, .sequence = 11, .channels = 21, .vocabulary = 17, .positions = 0, .type = type};
    Random random(1);
    const Tensor table = random.tensor(type, 17 * 21), dy = random.tensor(type, 33 * 21);
    const auto tokens = random.tokens(33, 17);
    Tensor output(type, 33 * 21), gradient(type, 17 * 21);
    embedding_forward(TestContext(2), s, tokens.data(), table.data(), nullptr, output.data());
    Doubles sums(17 * 21);
    for (std::int64_t i = 0; i < 33 * 21; ++i) {
      ASSERT_EQ(output.get(i), table.get(tokens[at(i / 21)] * 21 + i % 21));
      sums[at(tokens[at(i / 21)] * 21 + i % 21)] += dy.get(i);
    }
    const TestContext context(2, embedding_backward_workspace_bytes(s, 2));
    embedding_backward(
        context, s,
        {.tokens = tokens.data(), .output_gradient = dy.data(), .token_gradient = gradient.data()});
    expect_rounded(gradient, sums, "gradient");
    EXPECT_THROW(
        embedding_forward(TestContext(1), s, tokens.data(), table.data(), table.data(), output.data()),
        UsageError);
  }
}

}  // namespace
}  // namespace tessera::kernels::testing
