// Each head of each batch item is one task (in backward, the heads that share a key and value head): its rows
// of q, k and v are unpacked to fp32 and worked on in tiles of 64 queries by 64 keys that stay in the first
// cache levels. Probabilities are fp32 and exist for one tile at a time. bf16 stays bf16 where the processor
// has a matrix unit for it (attention_pairs-inl.h).
#include "kernels/attention.h"

#include <algorithm>
#include <string>

#include "kernels/check.h"
#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/matrix_unit.h"
#include "kernels/cpu/parallel.h"
#include "tessera/shape.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/attention_pairs-inl.h"
#include "kernels/cpu/attention_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// packed [kTile, padded] = scale * rows of input, zeros where there is no row or no column.
template <class T>
HWY_INLINE void pack(const T* input, std::int64_t stride, std::int64_t rows, const HeadShape& head,
                     float scale, float* packed) {
  for (std::int64_t row = 0; row < kTile; ++row)
    for (std::int64_t i = 0; i < head.padded; i += 16) {
      const std::int64_t count = head.channels - i;
      const V16 value =
          row < rows ? mul(load_some(input + row * stride + i, count), set16(scale)) : set16(0.0f);
      store16(value, packed + row * head.padded + i);
    }
}

// transposed [channels, kTile] of packed [kTile, padded].
HWY_INLINE void transpose_packed(const float* packed, const HeadShape& head, float* transposed) {
  transpose(packed, head.padded, kTile, head.channels, transposed);
}

// scores [kTile, kTile] = left [kTile, channels] right_transposed [channels, kTile]. On the diagonal, blocks
// of 16 that lie wholly above it are left out (and hold 0).
static HWY_NOINLINE void tile_scores(const float* left, const float* right_transposed, const HeadShape& head,
                                     bool diagonal, float* scores) {
  std::memset(scores, 0, kTile * kTile * sizeof(float));
  if (!diagonal)
    return add_product(kTile, kTile, head.channels, {left, head.padded, 1}, right_transposed, kTile, scores,
                       kTile);
  for (std::int64_t row = 0; row < kTile; row += 16)
    add_product(16, row + 16, head.channels, {left + row * head.padded, head.padded, 1}, right_transposed,
                kTile, scores + row * kTile, kTile);
}

// sums [kTile, padded] += weights [kTile, kTile] values [kTile, padded].
static HWY_NOINLINE void add_weighted(const float* weights, const float* values, const HeadShape& head,
                                      bool diagonal, float* sums) {
  if (!diagonal)
    return add_product(kTile, head.padded, kTile, {weights, kTile, 1}, values, head.padded, sums,
                       head.padded);
  for (std::int64_t row = 0; row < kTile; row += 16)
    add_product(16, head.padded, row + 16, {weights + row * kTile, kTile, 1}, values, head.padded,
                sums + row * head.padded, head.padded);
}

// sums [kTile, padded] += weights^T values: a key gathers from its queries.
static HWY_NOINLINE void add_weighted_transposed(const float* weights, const float* values,
                                                 const HeadShape& head, bool diagonal, float* sums) {
  if (!diagonal)
    return add_product(kTile, head.padded, kTile, {weights, 1, kTile}, values, head.padded, sums,
                       head.padded);
  for (std::int64_t key = 0; key < kTile;
       key += 16)  // on the diagonal only queries from `key` on see these keys
    add_product(16, head.padded, kTile - key, {weights + key * kTile + key, 1, kTile},
                values + key * head.padded, head.padded, sums + key * head.padded, head.padded);
}

template <class T>
HWY_INLINE void forward_head(const HeadShape& head, const ForwardHead& a, float* workspace) {
  const ForwardWorkspace w(head, workspace);
  const std::int64_t stride = head.qkv_channels;
  const float scale = head.scale();
  TileDraws draws = {head.dropout, a.item, a.head};
  for (std::int64_t tile = 0; tile < head.tiles(); ++tile) {
    const std::int64_t first = tile * kTile * stride;
    pack(static_cast<const T*>(a.key) + first, stride, head.rows_of(tile), head, 1.0f, w.query);
    transpose_packed(w.query, head, w.keys_transposed + tile * head.channels * kTile);
    pack(static_cast<const T*>(a.value) + first, stride, head.rows_of(tile), head, 1.0f,
         w.values + tile * head.tile_numel());
  }
  for (std::int64_t tile = 0; tile < head.tiles(); ++tile) {
    const std::int64_t rows = head.rows_of(tile);
    pack(static_cast<const T*>(a.query) + tile * kTile * stride, stride, rows, head, scale, w.query);
    std::memset(w.output, 0, static_cast<std::size_t>(head.tile_numel()) * sizeof(float));
    TileSums sums;
    sums.begin();
    for (std::int64_t keys = 0; keys <= tile; ++keys) {
      const bool diagonal = keys == tile;
      tile_scores(w.query, w.keys_transposed + keys * head.channels * kTile, head, diagonal, w.scores);
      sums.weigh(head, draws, tile, keys, 1.0f, w.scores, w.output);  // q is scaled already
      add_weighted(w.scores, w.values + keys * head.tile_numel(), head, diagonal, w.output);
    }
    sums.finish<T>(head, a, tile, w.output);
  }
}

// What backward needs of a tile of queries: q (scaled), the gradient of its output, and prepare_rows().
template <class T>
HWY_INLINE void prepare_queries(const HeadShape& head, const BackwardHead& a, std::int64_t tile,
                                const BackwardWorkspace& w) {
  const std::int64_t rows = head.rows_of(tile);
  const std::int64_t first = tile * kTile;
  pack(static_cast<const T*>(a.query) + first * head.qkv_channels, head.qkv_channels, rows, head,
       head.scale(), w.queries + tile * head.tile_numel());
  pack(static_cast<const T*>(a.output_gradient) + first * head.model_channels, head.model_channels, rows,
       head, 1.0f, w.output_gradients + tile * head.tile_numel());
  std::memset(w.query_gradients + tile * head.tile_numel(), 0,
              static_cast<std::size_t>(head.tile_numel()) * sizeof(float));
  prepare_rows<T>(head, a, tile, w.log_sum_exp + first, w.delta + first);
}

// One query head of a group. Key and value gradients start at the group's first head and are written out
// after its last; in between they stay in the workspace, in fp32.
template <class T>
HWY_INLINE void backward_head(const HeadShape& head, const BackwardHead& a, const BackwardWorkspace& w) {
  const std::int64_t stride = head.qkv_channels;
  TileDraws draws = {head.dropout, a.item, a.head};
  const auto tile_bytes = static_cast<std::size_t>(head.tile_numel()) * sizeof(float);
  for (std::int64_t tile = 0; tile < head.tiles(); ++tile) prepare_queries<T>(head, a, tile, w);
  for (std::int64_t keys = 0; keys < head.tiles(); ++keys) {
    const std::int64_t rows = head.rows_of(keys);
    const std::int64_t first = keys * kTile * stride;
    const std::int64_t kept = head.group > 1 ? keys * head.tile_numel() : 0;
    float* key_gradient = w.key_gradients + kept;
    float* value_gradient = w.value_gradients + kept;
    pack(static_cast<const T*>(a.value) + first, stride, rows, head, 1.0f, w.keys);
    transpose_packed(w.keys, head, w.values_transposed);
    pack(static_cast<const T*>(a.key) + first, stride, rows, head, 1.0f, w.keys);
    transpose_packed(w.keys, head, w.keys_transposed);
    if (a.first_of_group) {
      std::memset(key_gradient, 0, tile_bytes);
      std::memset(value_gradient, 0, tile_bytes);
    }
    for (std::int64_t tile = keys; tile < head.tiles(); ++tile) {
      const bool diagonal = tile == keys;
      const float* query = w.queries + tile * head.tile_numel();
      const float* gradient = w.output_gradients + tile * head.tile_numel();
      tile_scores(query, w.keys_transposed, head, diagonal, w.scores);
      tile_scores(gradient, w.values_transposed, head, diagonal, w.score_gradients);
      weights_and_gradients(w.log_sum_exp, w.delta, draws, tile, keys, 1.0f, w.scores, w.score_gradients);
      add_weighted_transposed(w.scores, gradient, head, diagonal, value_gradient);
      add_weighted_transposed(w.score_gradients, query, head, diagonal, key_gradient);
      add_weighted(w.score_gradients, w.keys, head, diagonal, w.query_gradients + tile * head.tile_numel());
    }
    if (!a.last_of_group) continue;
    unpack(key_gradient, 1.0f, rows, head, static_cast<T*>(a.key_gradient) + first,
           stride);  // q is scaled already
    unpack(value_gradient, 1.0f, rows, head, static_cast<T*>(a.value_gradient) + first, stride);
  }
  for (std::int64_t tile = 0; tile < head.tiles(); ++tile)
    unpack(w.query_gradients + tile * head.tile_numel(), head.scale(), head.rows_of(tile), head,
           static_cast<T*>(a.query_gradient) + tile * kTile * stride, stride);
}

void attention_forward_head(DType type, const HeadShape& head, const ForwardHead& arguments,
                            float* workspace) {
  if (head.by_pairs && pairs::kAvailable) return pairs::forward_head(head, arguments, workspace);
  if (type == DType::fp32)
    forward_head<float>(head, arguments, workspace);
  else
    forward_head<Bf16>(head, arguments, workspace);
}

void attention_backward_head(DType type, const HeadShape& head, const BackwardHead& arguments,
                             float* workspace) {
  if (head.by_pairs && pairs::kAvailable) return pairs::backward_head(head, arguments, workspace);
  const BackwardWorkspace w(head, workspace);
  if (type == DType::fp32)
    backward_head<float>(head, arguments, w);
  else
    backward_head<Bf16>(head, arguments, w);
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels::cpu {

HWY_EXPORT(attention_forward_head);
HWY_EXPORT(attention_backward_head);

namespace {

HeadShape head_of(const AttentionShape& shape) {
  check_attention(shape);
  return {.sequence = shape.sequence,
          .model_channels = shape.channels,
          .qkv_channels = shape.qkv_channels(),
          .group = shape.heads / shape.kv_heads_or_heads(),
          .channels = shape.head_channels(),
          .padded = round_up(shape.head_channels(), 16),
          .by_pairs = shape.type == DType::bf16 && has_matrix_unit(),
          .dropout = shape.dropout};
}

// Of one thread. A narrower instruction set than the processor's best one does without the matrix unit.
std::int64_t forward_numel(const HeadShape& head) {
  return std::max(ForwardWorkspace::numel(head), head.by_pairs ? PairForwardWorkspace::numel(head) : 0);
}
std::int64_t backward_numel(const HeadShape& head) {
  return std::max(BackwardWorkspace::numel(head), head.by_pairs ? PairBackwardWorkspace::numel(head) : 0);
}

// Where a head of a batch item begins: its query, key and value in a packed tensor, its output, its
// statistics.
struct HeadPlace {
  std::int64_t query, key, value, output, statistics;

  HeadPlace(const AttentionShape& shape, std::int64_t item, std::int64_t head) {
    const std::int64_t row = item * shape.sequence;
    const std::int64_t shared = head / (shape.heads / shape.kv_heads_or_heads());
    query = row * shape.qkv_channels() + head * shape.head_channels();
    key = row * shape.qkv_channels() + shape.channels + shared * shape.head_channels();
    value = key + shape.kv_heads_or_heads() * shape.head_channels();
    output = row * shape.channels + head * shape.head_channels();
    statistics = (item * shape.heads + head) * shape.sequence;
  }
};

}  // namespace

std::int64_t attention_forward_workspace_bytes(const AttentionShape& shape, const Target& target) {
  return target.threads * workspace_part_bytes(forward_numel(head_of(shape)) * 4);
}

void attention_forward(const ComputeContext& context, const AttentionShape& shape, const void* qkv,
                       void* output, float* log_sum_exp) {
  const HeadShape head = head_of(shape);
  check_workspace(context, cpu::attention_forward_workspace_bytes(shape, context.target()),
                  "attention_forward");
  const std::int64_t part_bytes = workspace_part_bytes(forward_numel(head) * 4);
  const auto run = [&](std::int64_t begin, std::int64_t end, int thread) {
    for (std::int64_t task = begin; task < end; ++task) {
      const HeadPlace place(shape, task / shape.heads, task % shape.heads);
      const ForwardHead arguments = {.query = element(qkv, shape.type, place.query),
                                     .key = element(qkv, shape.type, place.key),
                                     .value = element(qkv, shape.type, place.value),
                                     .output = element(output, shape.type, place.output),
                                     .log_sum_exp = log_sum_exp + place.statistics,
                                     .item = static_cast<std::uint32_t>(task / shape.heads),
                                     .head = static_cast<std::uint32_t>(task % shape.heads)};
      HWY_DYNAMIC_DISPATCH(attention_forward_head)
      (shape.type, head, arguments, offset_bytes<float>(context.workspace.data, thread * part_bytes));
    }
  };
  parallel_ranges(context.threads, shape.batch * shape.heads, 1, run);
}

std::int64_t attention_backward_workspace_bytes(const AttentionShape& shape, const Target& target) {
  return target.threads * workspace_part_bytes(backward_numel(head_of(shape)) * 4);
}

void attention_backward(const ComputeContext& context, const AttentionShape& shape,
                        const AttentionBackward& arguments) {
  const HeadShape head = head_of(shape);
  check_workspace(context, cpu::attention_backward_workspace_bytes(shape, context.target()),
                  "attention_backward");
  const std::int64_t part_bytes = workspace_part_bytes(backward_numel(head) * 4);
  const DType type = shape.type;
  const auto run_head = [&](std::int64_t item, std::int64_t index, int thread) {
    const HeadPlace place(shape, item, index);
    const BackwardHead of_head = {.query = element(arguments.qkv, type, place.query),
                                  .key = element(arguments.qkv, type, place.key),
                                  .value = element(arguments.qkv, type, place.value),
                                  .output = element(arguments.output, type, place.output),
                                  .log_sum_exp = arguments.log_sum_exp + place.statistics,
                                  .output_gradient = element(arguments.output_gradient, type, place.output),
                                  .query_gradient = element(arguments.qkv_gradient, type, place.query),
                                  .key_gradient = element(arguments.qkv_gradient, type, place.key),
                                  .value_gradient = element(arguments.qkv_gradient, type, place.value),
                                  .first_of_group = index % head.group == 0,
                                  .last_of_group = index % head.group == head.group - 1,
                                  .item = static_cast<std::uint32_t>(item),
                                  .head = static_cast<std::uint32_t>(index)};
    HWY_DYNAMIC_DISPATCH(attention_backward_head)
    (type, head, of_head, offset_bytes<float>(context.workspace.data, thread * part_bytes));
  };
  // A task is a group of heads, in order, because they add to the same gradients.
  parallel_ranges(context.threads, shape.batch * shape.heads / head.group, 1,
                  [&](std::int64_t begin, std::int64_t end, int thread) {
                    for (std::int64_t task = begin * head.group; task < end * head.group; ++task)
                      run_head(task / shape.heads, task % shape.heads, thread);
                  });
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
