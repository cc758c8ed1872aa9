// attention.h against float64.
#include "kernels/cpu/matrix_unit.h"
#include "tests/kernels/attention_reference.h"
#include "tests/kernels/support.h"

namespace tessera::kernels::testing {
namespace {

struct Results {
  Tensor output, log_sum_exp, gradient;
  bool operator==(const Results&) const = default;
};

Results run(const AttentionShape& s, int threads, const Tensor& qkv, const Tensor& dy) {
  Results r = {Tensor(s.type, dy.numel()), Tensor(DType::fp32, s.batch * s.heads * s.sequence),
               Tensor(s.type, qkv.numel())};
  const TestContext forward(threads, attention_forward_workspace_bytes(s, threads));
  attention_forward(forward, s, qkv.data(), r.output.data(), r.log_sum_exp.floats());
  const TestContext backward(threads, attention_backward_workspace_bytes(s, threads));
  attention_backward(backward, s,
                     {.qkv = qkv.data(),
                      .output = r.output.data(),
                      .log_sum_exp = r.log_sum_exp.floats(),
                      .output_gradient = dy.data(),
                      .qkv_gradient = r.gradient.data()});
  return r;
}

TEST(Attention, ReferenceGradientMatchesFiniteDifferences) {
  const AttentionReference r = {{.batch = 2, .sequence = 4, .channels = 6, .heads = 2}};
  Random random(1);
  const Doubles qkv = random.tensor(DType::fp32, 2 * 4 * 18).doubles();
  const Doubles dy = random.tensor(DType::fp32, 2 * 4 * 6).doubles();
  expect_close(r.backward(qkv, dy),
               finite_differences(qkv, [&](const Doubles& x) { return dot(dy, r.forward(x)); }), 1e-8,
               "gradient");
}

TEST(Attention, ReferenceGradientOfSharedKeysMatchesFiniteDifferences) {
  const AttentionReference r = {{.batch = 2, .sequence = 4, .channels = 12, .heads = 4, .kv_heads = 2}};
  Random random(1);
  const Doubles qkv = random.tensor(DType::fp32, 2 * 4 * 24).doubles();
  const Doubles dy = random.tensor(DType::fp32, 2 * 4 * 12).doubles();
  expect_close(r.backward(qkv, dy),
               finite_differences(qkv, [&](const Doubles& x) { return dot(dy, r.forward(x)); }), 1e-8,
               "gradient");
}

constexpr Dropout kDropout = {
    .threshold = 19661, .key = 0x0123456789abcdef, .matrix = 5, .first_sequence = 9};

TEST(Attention, ReferenceGradientOfDropoutMatchesFiniteDifferences) {
  const AttentionReference r = {
      {.batch = 2, .sequence = 9, .channels = 12, .heads = 4, .kv_heads = 2, .dropout = kDropout}};
  Random random(1);
  const Doubles qkv = random.tensor(DType::fp32, 2 * 9 * 24).doubles();
  const Doubles dy = random.tensor(DType::fp32, 2 * 9 * 12).doubles();
  expect_close(r.backward(qkv, dy),
               finite_differences(qkv, [&](const Doubles& x) { return dot(dy, r.forward(x)); }), 1e-8,
               "gradient");
}

// Forward, backward and another number of threads.
void expect_float64(const AttentionShape& s) {
  Random random(static_cast<std::uint64_t>(s.sequence));
  const Tensor qkv = random.tensor(s.type, s.batch * s.sequence * s.qkv_channels(), 1.5);
  const Tensor dy = random.tensor(s.type, s.batch * s.sequence * s.channels);
  const Results one = run(s, 1, qkv, dy);
  const AttentionReference r = {s};
  Doubles log_sum_exp;
  const Doubles output = r.forward(qkv.doubles(), &log_sum_exp);
  const std::string what =
      " at sequence " + std::to_string(s.sequence) + ", dropout " + std::to_string(s.dropout.threshold);
  expect_close(one.output, output, tolerance_of(s.type), "output" + what);
  expect_close(one.log_sum_exp, log_sum_exp, 1e-5, "log_sum_exp" + what);
  // A matrix unit takes weights and their gradients rounded, too.
  const double rounded = s.type == DType::bf16 && cpu::has_matrix_unit() ? 1.5 : 1.0;
  expect_close(one.gradient, r.backward(qkv.doubles(), dy.doubles()),
               (s.kv_heads > 0 ? 3 : 2) * rounded * tolerance_of(s.type), "gradient" + what);
  EXPECT_TRUE(one == run(s, 2, qkv, dy)) << "threads change bits" << what;
}

TEST(Attention, MatchesFloat64) {
  struct Extents {
    std::int64_t batch, sequence, channels, heads, kv_heads = 0;
  };
  for (const DType type : kComputeTypes)
    for (const Extents e :
         {Extents{1, 1, 1, 1}, Extents{2, 5, 6, 2}, Extents{1, 63, 16, 1}, Extents{2, 64, 128, 2},
          Extents{1, 65, 40, 2}, Extents{2, 150, 36, 3}, Extents{1, 200, 160, 2}, Extents{1, 1, 4, 4, 1},
          Extents{2, 70, 48, 6, 2}, Extents{1, 150, 128, 2, 1}, Extents{2, 65, 80, 4, 4},
          Extents{1, 70, 33, 1}, Extents{1, 66, 260, 2, 1}})
      for (const Dropout& dropout : {Dropout{}, kDropout})
        expect_float64({e.batch, e.sequence, e.channels, e.heads, type, e.kv_heads, dropout});
}

// Grouped-query attention is attention with the shared keys and values written out for every head: the output
// to the bit, the gradients as sums over the group.
void expect_shared_as_repeated(DType type) {
  const AttentionShape shared = {
      .batch = 2, .sequence = 70, .channels = 32, .heads = 4, .type = type, .kv_heads = 2};
  AttentionShape full = shared;
  full.kv_heads = 4;
  Random random(3);
  const std::int64_t tokens = 140, width = 8;
  const Tensor qkv = random.tensor(shared.type, tokens * 64), dy = random.tensor(shared.type, tokens * 32);
  Tensor repeated(shared.type, tokens * 96);
  const auto source = [&](std::int64_t token, std::int64_t column) {  // of a column of the repeated tensor
    const std::int64_t head = column / width, channel = column % width;
    const std::int64_t part = head / 4;
    const std::int64_t shared_head = part == 0 ? head : 4 + (part - 1) * 2 + head % 4 / 2;
    return token * 64 + shared_head * width + channel;
  };
  for (std::int64_t i = 0; i < repeated.numel(); ++i) repeated.set(i, qkv.get(source(i / 96, i % 96)));
  const Results a = run(shared, 1, qkv, dy), b = run(full, 1, repeated, dy);
  EXPECT_TRUE(a.output == b.output);
  EXPECT_TRUE(a.log_sum_exp == b.log_sum_exp);
  Doubles sums(static_cast<std::size_t>(qkv.numel()));
  for (std::int64_t i = 0; i < repeated.numel(); ++i)
    sums[static_cast<std::size_t>(source(i / 96, i % 96))] += b.gradient.get(i);
  expect_close(a.gradient, sums, type == DType::fp32 ? 1e-5 : 2 * tolerance_of(type), "gradient");
}
TEST(Attention, SharedKeysAreRepeatedKeys) {
  for (const DType type : kComputeTypes) expect_shared_as_repeated(type);
}

// Heads [first, first + heads) of a tensor whose rows have parts of `all` heads each: query, key, value, or
// the output alone.
Tensor heads_of(const Tensor& from, std::int64_t width, std::vector<std::int64_t> parts, std::int64_t ranks,
                std::int64_t rank) {
  std::vector<std::int64_t> channels;  // that the rank has of a row
  std::int64_t row_numel = 0;
  for (const std::int64_t heads : parts) {
    for (std::int64_t c = 0; c < heads / ranks * width; ++c)
      channels.push_back(row_numel + rank * (heads / ranks) * width + c);
    row_numel += heads * width;
  }
  Doubles values;
  for (std::int64_t row = 0; row < from.numel() / row_numel; ++row)
    for (const std::int64_t channel : channels) values.push_back(from.get(row * row_numel + channel));
  return Tensor(from.type(), values);
}

// Dropout::matrix is the number of a rank's first head: what it drops, and so all of its results, are then
// those of the heads of one rank, to the bit.
TEST(Attention, RanksThatSplitHeadsDropAsOneRank) {
  for (const DType type : kComputeTypes)
    for (const std::int64_t kv_heads : {8, 4}) {
      const AttentionShape whole = {.batch = 2,
                                    .sequence = 70,
                                    .channels = 8 * 12,
                                    .heads = 8,
                                    .type = type,
                                    .kv_heads = kv_heads,
                                    .dropout = kDropout};
      Random random(6);
      const Tensor qkv = random.tensor(type, 140 * whole.qkv_channels()), dy = random.tensor(type, 140 * 96);
      const Results all = run(whole, 1, qkv, dy);
      for (const std::int64_t ranks : {2, 4})
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          AttentionShape part = whole;
          part.channels = whole.channels / ranks;
          part.heads = 8 / ranks;
          part.kv_heads = kv_heads / ranks;
          part.dropout.matrix += static_cast<std::uint32_t>(rank * part.heads);
          const std::vector<std::int64_t> parts = {8, kv_heads, kv_heads};
          const Results own =
              run(part, 1, heads_of(qkv, 12, parts, ranks, rank), heads_of(dy, 12, {8}, ranks, rank));
          EXPECT_TRUE(own.output == heads_of(all.output, 12, {8}, ranks, rank)) << rank << " of " << ranks;
          EXPECT_TRUE(own.gradient == heads_of(all.gradient, 12, parts, ranks, rank))
              << rank << " of " << ranks;
          part.dropout.matrix = whole.dropout.matrix;  // as if its heads were the first
          const Results others =
              run(part, 1, heads_of(qkv, 12, parts, ranks, rank), heads_of(dy, 12, {8}, ranks, rank));
          EXPECT_EQ(others == own, rank == 0);
        }
    }
}

TEST(Attention, LargeScoresStayFinite) {
  for (const DType type : kComputeTypes) {
    const AttentionShape s = {.batch = 1, .sequence = 100, .channels = 16, .heads = 1, .type = type};
    Random random(2);
    const Tensor qkv = random.tensor(s.type, s.sequence * 48, 40.0);
    const Tensor dy = random.tensor(s.type, s.sequence * 16);
    const Results r = run(s, 1, qkv, dy);
    expect_close(r.output, AttentionReference{s}.forward(qkv.doubles()),
                 type == DType::fp32 ? 1e-4 : tolerance_of(type), "output");
    for (const double g : r.gradient.doubles()) ASSERT_TRUE(std::isfinite(g));
  }
}

// A later token, as long as it is finite, must not reach an earlier output.
TEST(Attention, IsCausal) {
  for (const DType type : kComputeTypes) {
    const AttentionShape s = {.batch = 1, .sequence = 90, .channels = 8, .heads = 1, .type = type};
    Random random(4);
    Tensor qkv = random.tensor(s.type, s.sequence * 24);
    const Tensor dy = random.tensor(s.type, s.sequence * 8);
    const Tensor before = run(s, 1, qkv, dy).output;
    for (std::int64_t i = 80 * 24; i < qkv.numel(); ++i) qkv.set(i, 7.0 * random.normal());
    const Tensor after = run(s, 1, qkv, dy).output;
    for (std::int64_t i = 0; i < 80 * 8; ++i) ASSERT_EQ(before.get(i), after.get(i));
  }
}

TEST(Attention, RefusesBadShapesAndSmallWorkspaces) {
  AttentionShape s = {.batch = 1, .sequence = 4, .channels = 6, .heads = 4};
  EXPECT_THROW(attention_forward_workspace_bytes(s, 1), UsageError);
  s.heads = 2;
  s.kv_heads = 3;
  EXPECT_THROW(attention_forward_workspace_bytes(s, 1), UsageError);
  s.kv_heads = 0;
  s.type = DType::fp16;
  EXPECT_THROW(attention_forward_workspace_bytes(s, 1), UsageError);
  s.type = DType::fp32;
  Tensor qkv(s.type, 4 * 18), output(s.type, 4 * 6), statistics(s.type, 8);
  const TestContext small(1, attention_forward_workspace_bytes(s, 1) - 1);
  EXPECT_THROW(attention_forward(small, s, qkv.data(), output.data(), statistics.floats()), UsageError);
}

}  // namespace
}  // namespace tessera::kernels::testing
