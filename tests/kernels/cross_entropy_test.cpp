// cross_entropy.h against float64.
#include "kernels/cross_entropy_chunks.h"
#include "tests/kernels/cross_entropy_reference.h"

namespace tessera::kernels::testing {
namespace {

TEST(CrossEntropy, ReferenceGradientsMatchFiniteDifferences) {
  Random random(1);
  const CrossEntropyReference r =
      make_cross_entropy_reference({.rows = 4, .channels = 3, .vocabulary = 6}, random);
  const Doubles x = random.tensor(DType::fp32, 12).doubles(), w = random.tensor(DType::fp32, 18).doubles();
  const CrossEntropyReference::Gradients d = r.backward(x, w, 1.0);
  expect_close(d.x, finite_differences(x, [&](const Doubles& v) { return r.loss(v, w); }), 1e-7, "x");
  expect_close(d.w, finite_differences(w, [&](const Doubles& v) { return r.loss(x, v); }), 1e-7, "w");
}

void check_total(const CrossEntropyLoss& total, const CrossEntropyReference& r, const Tensor& losses) {
  double sum = 0.0;
  std::int64_t counted = 0;
  for (std::int64_t row = 0; row < r.s.rows; ++row)
    if (r.targets[static_cast<std::size_t>(row)] >= 0) {
      sum += losses.get(row);
      ++counted;
    }
  EXPECT_EQ(total.sum, sum);
  EXPECT_EQ(total.counted, counted);
}

void check_head(const CrossEntropyShape& s, int threads, float beta, float scale) {
  Random random(static_cast<std::uint64_t>(s.rows * 7 + s.vocabulary));
  const CrossEntropyReference r = make_cross_entropy_reference(s, random);
  const Tensor x = random.tensor(s.type, s.rows * s.channels);
  const Tensor w = random.tensor(s.type, s.vocabulary * s.channels, 0.5);
  const TestContext context(threads, cross_entropy_workspace_bytes(s, threads));
  Tensor losses(DType::fp32, s.rows), forward_losses(DType::fp32, s.rows), dx(s.type, s.rows * s.channels);
  const DType weight_type = s.fp32_weight_gradient ? DType::fp32 : s.type;
  Tensor dw = beta == 0.0f ? Tensor(weight_type, w.numel()) : random.tensor(weight_type, w.numel());
  CrossEntropyReference::Gradients d = r.backward(x.doubles(), w.doubles(), scale);
  if (beta != 0.0f) d.w = sum_of(d.w, dw.doubles());

  CrossEntropyLoss total = {.sum = 1.0, .counted = 1};
  cross_entropy_forward(context, s, x.data(), w.data(), r.targets.data(), forward_losses.floats(), &total);
  expect_close(forward_losses, r.losses(x.doubles(), w.doubles()), 5e-6, "losses");
  check_total(total, r, forward_losses);
  cross_entropy_forward_backward(context, s,
                                 {.input = x.data(),
                                  .weight = w.data(),
                                  .targets = r.targets.data(),
                                  .scale = scale,
                                  .losses = losses.floats(),
                                  .total = &total,
                                  .input_gradient = dx.data(),
                                  .weight_gradient = dw.data(),
                                  .weight_beta = beta});
  EXPECT_TRUE(losses == forward_losses);
  check_total(total, r, losses);
  expect_close(dx, d.x, tolerance_of(s.type), "input gradient");
  expect_close(dw, d.w, 2 * tolerance_of(s.type), "weight gradient");

  Tensor over_input = x;
  cross_entropy_forward_backward(context, s,
                                 {.input = over_input.data(),
                                  .weight = w.data(),
                                  .targets = r.targets.data(),
                                  .scale = scale,
                                  .losses = losses.floats(),
                                  .total = &total,
                                  .input_gradient = over_input.data()});
  EXPECT_TRUE(over_input == dx) << "in place, without a weight gradient";
}

TEST(CrossEntropy, MatchesFloat64) {
  for (const DType type : kComputeTypes)
    for (const int threads : kThreadCounts)
      for (const float beta : {0.0f, 1.0f}) {
        check_head({.rows = 1, .channels = 3, .vocabulary = 5, .type = type}, threads, beta, 1.0f);
        check_head({.rows = 37, .channels = 33, .vocabulary = 130, .type = type}, threads, beta, 0.25f);
        // Chunks of 8, 8, 8, 8 and 5 rows, and of one row each.
        check_head({.rows = 37, .channels = 16, .vocabulary = 67, .type = type, .chunk_bytes = 8 * 67 * 4},
                   threads, beta, 2.0f);
        check_head({.rows = 4, .channels = 16, .vocabulary = 67, .type = type, .chunk_bytes = 1}, threads,
                   beta, 1.0f);
        check_head({.rows = 37,
                    .channels = 16,
                    .vocabulary = 67,
                    .type = type,
                    .chunk_bytes = 8 * 67 * 4,
                    .fp32_weight_gradient = true},
                   threads, beta, 2.0f);
      }
}

// The weight's gradient by chunks of one row, less that of all rows at once, both in float64: the largest
// difference.
double lost_by_chunks(bool in_fp32) {
  CrossEntropyShape s = {.rows = 300, .channels = 16, .vocabulary = 67, .type = DType::bf16};
  Random random(8);
  const CrossEntropyReference r = make_cross_entropy_reference(s, random);
  const Tensor x = random.tensor(s.type, s.rows * s.channels),
               w = random.tensor(s.type, s.vocabulary * s.channels);
  const auto gradient = [&](std::int64_t chunk_bytes, bool fp32) {
    s.chunk_bytes = chunk_bytes;
    s.fp32_weight_gradient = fp32;
    Tensor losses(DType::fp32, s.rows), dx(s.type, x.numel()), dw(fp32 ? DType::fp32 : s.type, w.numel());
    CrossEntropyLoss total;
    cross_entropy_forward_backward(TestContext(1, cross_entropy_workspace_bytes(s, 1)), s,
                                   {.input = x.data(),
                                    .weight = w.data(),
                                    .targets = r.targets.data(),
                                    .losses = losses.floats(),
                                    .total = &total,
                                    .input_gradient = dx.data(),
                                    .weight_gradient = dw.data()});
    return dw.doubles();
  };
  const Doubles whole = gradient(0, true), chunks = gradient(1, in_fp32);
  double most = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) most = std::max(most, std::abs(chunks[i] - whole[i]));
  return most;
}

TEST(CrossEntropy, AnFp32SumOverChunksLosesNothing) {
  EXPECT_LT(lost_by_chunks(true), 1e-5);
  EXPECT_GT(lost_by_chunks(false), 1e-2) << "the gradients are sums of some 300 values of up to 1";
}

TEST(CrossEntropy, WorkspaceIsBounded) {
  const CrossEntropyShape s = {.rows = 256, .channels = 16, .vocabulary = 5000, .chunk_bytes = 400000};
  EXPECT_LT(cross_entropy_workspace_bytes(s, 1), 2 * 400000);  // all logits would be 5,120,000
}

TEST(CrossEntropy, ChunksAreEqualAndWithinTheBound) {
  struct Case {
    std::int64_t rows, vocabulary, bytes, cpu, gpu;  // the last two: rows of a chunk
  };
  for (const Case& c :
       {Case{16384, 50257, 0, 328, 2048}, Case{5000, 50257, 0, 313, 1667}, Case{300, 50257, 0, 300, 300},
        Case{8192, 128256, 0, 128, 2048}, Case{8192, 256, 0, 8192, 2048}, Case{100, 1000, 40 * 4000, 34, 34},
        Case{100, 1000, 1, 1, 1}}) {
    const CrossEntropyShape s = {
        .rows = c.rows, .channels = 8, .vocabulary = c.vocabulary, .chunk_bytes = c.bytes};
    EXPECT_EQ(rows_per_chunk(s, DeviceType::cpu), c.cpu) << c.rows << " " << c.vocabulary;
    EXPECT_EQ(rows_per_chunk(s, DeviceType::cuda), c.gpu) << c.rows << " " << c.vocabulary;
  }
}

TEST(CrossEntropy, NothingCounted) {
  const CrossEntropyShape s = {.rows = 3, .channels = 4, .vocabulary = 5};
  Random random(1);
  const Tensor x = random.tensor(s.type, 12), w = random.tensor(s.type, 20);
  const std::vector<std::int32_t> targets(3, -1);
  Tensor losses(DType::fp32, 3), dx(s.type, 12), dw(s.type, 20);
  CrossEntropyLoss total;
  cross_entropy_forward_backward(TestContext(1, cross_entropy_workspace_bytes(s, 1)), s,
                                 {.input = x.data(),
                                  .weight = w.data(),
                                  .targets = targets.data(),
                                  .losses = losses.floats(),
                                  .total = &total,
                                  .input_gradient = dx.data(),
                                  .weight_gradient = dw.data()});
  EXPECT_EQ(total.counted, 0);
  EXPECT_EQ(total.sum, 0.0);
  for (const double g : dw.doubles()) EXPECT_EQ(g, 0.0);
  for (const double g : dx.doubles()) EXPECT_EQ(g, 0.0);
}

TEST(CrossEntropy, NaNReachesTheLoss) {
  const CrossEntropyShape s = {.rows = 2, .channels = 4, .vocabulary = 5};
  Random random(1);
  Tensor x = random.tensor(s.type, 8);
  const Tensor w = random.tensor(s.type, 20);
  x.set(5, std::nan(""));
  const std::int32_t targets[] = {0, 1};
  Tensor losses(DType::fp32, 2);
  CrossEntropyLoss total;
  cross_entropy_forward(TestContext(1, cross_entropy_workspace_bytes(s, 1)), s, x.data(), w.data(), targets,
                        losses.floats(), &total);
  EXPECT_TRUE(std::isfinite(losses.get(0)));
  EXPECT_TRUE(std::isnan(losses.get(1)) && std::isnan(total.sum));
}

TEST(CrossEntropy, RefusesWrongTargets) {
  const CrossEntropyShape s = {.rows = 1, .channels = 1, .vocabulary = 3};
  Tensor t(DType::fp32, 3);
  CrossEntropyLoss total;
  const TestContext context(1, cross_entropy_workspace_bytes(s, 1));
  for (const std::int32_t wrong : {-2, 3})
    EXPECT_THROW(cross_entropy_forward(context, s, t.data(), t.data(), &wrong, t.floats(), &total),
                 UsageError);
}

}  // namespace
}  // namespace tessera::kernels::testing
