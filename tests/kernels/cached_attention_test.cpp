// cached_attention.h: token by token, in chunks and in blocks, against attention over all of a sequence.
#include "tests/kernels/support.h"

namespace tessera::kernels::testing {
namespace {

struct Steps {
  Tensor output, cache;
  bool operator==(const Steps&) const = default;
};

std::int64_t column_of(const AttentionShape& s, std::int64_t head, int part) {
  const std::int64_t shared = head / (s.heads / s.kv_heads_or_heads());
  return part == 0 ? head * s.head_channels()
                   : s.channels + ((part - 1) * s.kv_heads_or_heads() + shared) * s.head_channels();
}

// Attention of each row over those before it, in float64.
Doubles reference(const AttentionShape& s, const Doubles& qkv) {
  const std::int64_t width = s.qkv_channels(), channels = s.head_channels();
  Doubles output(static_cast<std::size_t>(s.batch * s.sequence * s.channels));
  const auto at = [&](std::int64_t item, std::int64_t row, std::int64_t column) {
    return qkv[static_cast<std::size_t>((item * s.sequence + row) * width + column)];
  };
  for (std::int64_t item = 0; item < s.batch; ++item)
    for (std::int64_t row = 0; row < s.sequence; ++row)
      for (std::int64_t head = 0; head < s.heads; ++head) {
        Doubles weights;
        double most = -1e300, sum = 0.0;
        for (std::int64_t key = 0; key <= row; ++key) {
          double score = 0.0;
          for (std::int64_t c = 0; c < channels; ++c)
            score += at(item, row, column_of(s, head, 0) + c) * at(item, key, column_of(s, head, 1) + c);
          weights.push_back(score / std::sqrt(static_cast<double>(channels)));
          most = std::max(most, weights.back());
        }
        for (double& weight : weights) sum += weight = std::exp(weight - most);
        for (std::int64_t key = 0; key <= row; ++key)
          for (std::int64_t c = 0; c < channels; ++c)
            output[static_cast<std::size_t>((item * s.sequence + row) * s.channels + column_of(s, head, 0) +
                                            c)] +=
                weights[static_cast<std::size_t>(key)] / sum * at(item, key, column_of(s, head, 2) + c);
      }
  return output;
}

CachedAttentionShape cached(const AttentionShape& s, std::int64_t capacity, std::int64_t rows) {
  return {.batch = s.batch,
          .rows = rows,
          .capacity = capacity,
          .channels = s.channels,
          .heads = s.heads,
          .type = s.type,
          .kv_heads = s.kv_heads};
}

// The sequence in steps of so many rows, each into the cache that those before it have filled.
Steps run(const AttentionShape& s, std::int64_t capacity, const std::vector<std::int64_t>& steps,
          const Tensor& qkv, int threads) {
  Steps made{Tensor(s.type, s.batch * s.sequence * s.channels),
             Tensor(s.type, cached(s, capacity, 1).cache_bytes() / bytes_of(s.type))};
  std::int64_t position = 0;
  for (const std::int64_t rows : steps) {
    CachedAttentionShape shape = cached(s, capacity, rows);
    shape.position = position;
    const std::int64_t width = s.qkv_channels();
    Tensor in(s.type, s.batch * rows * width), out(s.type, s.batch * rows * s.channels);
    const auto each = [&](std::int64_t columns, const auto& visit) {
      for (std::int64_t item = 0; item < s.batch; ++item)
        for (std::int64_t i = 0; i < rows * columns; ++i)
          visit(item * rows * columns + i, (item * s.sequence + position) * columns + i);
    };
    each(width, [&](std::int64_t own, std::int64_t all) { in.set(own, qkv.get(all)); });
    cached_attention_forward(TestContext(threads, cached_attention_workspace_bytes(shape, threads)), shape,
                             in.data(), made.cache.data(), out.data());
    each(s.channels, [&](std::int64_t own, std::int64_t all) { made.output.set(all, out.get(own)); });
    position += rows;
  }
  return made;
}

TEST(CachedAttention, MatchesFloat64) {
  struct Case {
    AttentionShape shape;
    std::int64_t capacity;
    std::vector<std::int64_t> steps;
  };
  const std::vector<std::int64_t> singles(17, 1);
  std::vector<Case> cases = {
      {{.batch = 2, .sequence = 17, .channels = 6, .heads = 2}, 17, singles},
      {{.batch = 1, .sequence = 17, .channels = 128, .heads = 2}, 40, singles},
      {{.batch = 2, .sequence = 100, .channels = 96, .heads = 6, .kv_heads = 2}, 128, {64, 3, 1, 32}},
      {{.batch = 1, .sequence = 150, .channels = 160, .heads = 2, .kv_heads = 1}, 150, {149, 1}},
      // Several blocks of places: rows that see one, two and three of them.
      {{.batch = 1, .sequence = 1100, .channels = 40, .heads = 2}, 1200, {508, 1, 8, 509, 7, 67}},
      {{.batch = 1, .sequence = 1030, .channels = 32, .heads = 4, .kv_heads = 1}, 1030, {1024, 2, 4}},
      {{.batch = 1, .sequence = 130, .channels = 4 * 80, .heads = 80, .kv_heads = 1}, 131, {65, 65}}};
  for (const DType type : {DType::fp32, DType::bf16})
    for (Case& one : cases) {
      one.shape.type = type;
      Random random(static_cast<std::uint64_t>(one.capacity));
      const Tensor qkv =
          random.tensor(type, one.shape.batch * one.shape.sequence * one.shape.qkv_channels(), 1.5);
      const Steps made = run(one.shape, one.capacity, one.steps, qkv, 1);
      const std::string what = "capacity " + std::to_string(one.capacity);
      expect_close(made.output, reference(one.shape, qkv.doubles()), tolerance_of(type), what);
      EXPECT_TRUE(made == run(one.shape, one.capacity, one.steps, qkv, 3)) << "threads change bits, " << what;
    }
}

// Keys, then values, by head; what no row has reached stays as it was.
TEST(CachedAttention, KeepsKeysAndValuesAtTheirPlaces) {
  const AttentionShape s = {.batch = 2, .sequence = 5, .channels = 24, .heads = 6, .kv_heads = 2};
  const std::int64_t capacity = 9, channels = s.head_channels();
  Random random(4);
  const Tensor qkv = random.tensor(s.type, 2 * 5 * s.qkv_channels());
  const Steps made = run(s, capacity, {2, 1, 2}, qkv, 1);
  for (const std::int64_t of : {0, 1})
    for (std::int64_t head = 0; head < 4; ++head)
      for (std::int64_t row = 0; row < capacity; ++row)
        for (std::int64_t c = 0; c < channels; ++c) {
          const double kept = made.cache.get(((of * 4 + head) * capacity + row) * channels + c);
          if (row >= 5) {
            EXPECT_TRUE(std::isnan(kept));
            continue;
          }
          const std::int64_t column = s.channels + (of * 2 + head % 2) * channels + c;
          EXPECT_EQ(kept, qkv.get((head / 2 * 5 + row) * s.qkv_channels() + column));
        }
}

// A step again, from an earlier position, gives the same: what lies behind is not read.
TEST(CachedAttention, GoesBack) {
  const AttentionShape s = {.batch = 1, .sequence = 20, .channels = 32, .heads = 2};
  Random random(5);
  const Tensor qkv = random.tensor(s.type, 20 * s.qkv_channels());
  Steps made = run(s, 20, {12, 8}, qkv, 1);
  CachedAttentionShape shape = cached(s, 20, 3);
  shape.position = 12;
  Tensor in(s.type, 3 * s.qkv_channels()), out(s.type, 3 * s.channels);
  for (std::int64_t i = 0; i < in.numel(); ++i) in.set(i, qkv.get(12 * s.qkv_channels() + i));
  cached_attention_forward(TestContext(1, cached_attention_workspace_bytes(shape, 1)), shape, in.data(),
                           made.cache.data(), out.data());
  for (std::int64_t i = 0; i < out.numel(); ++i) EXPECT_EQ(out.get(i), made.output.get(12 * s.channels + i));
}

TEST(CachedAttention, RefusesRowsThatDoNotFit) {
  CachedAttentionShape shape = {
      .batch = 1, .rows = 2, .capacity = 8, .position = 7, .channels = 8, .heads = 2};
  EXPECT_THROW(cached_attention_workspace_bytes(shape, 1), UsageError);
  shape.position = 6;
  EXPECT_GT(cached_attention_workspace_bytes(shape, 1), 0);
  shape.kv_heads = 3;
  EXPECT_THROW(cached_attention_workspace_bytes(shape, 1), UsageError);
}

}  // namespace
}  // namespace tessera::kernels::testing
