// A task is some rows of the query heads that share a key and value head, over one block of places. It goes
// through the block by tiles of kTile places, which stay in the first cache levels while all its queries use
// them, and leaves a running maximum, a sum and weighted values for each query; a second pass joins blocks.
#include "kernels/cached_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/check.h"
#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/cached_task.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops.h"
#include "tessera/shape.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cached_attention.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/attention_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// The rows as floats with zeros behind their channels.
template <class T>
HWY_INLINE const float* float_rows(const T* rows, std::int64_t count, const CachedTask& task, float* packed) {
  for (std::int64_t row = 0; row < count; ++row)
    for (std::int64_t i = 0; i < task.padded; i += 16)
      store16(load_some(rows + row * task.channels + i, task.channels - i), packed + row * task.padded + i);
  return packed;
}

// scores[k] = query . keys[k] for kCount keys, each one chain over the channels.
template <int kCount, class T>
HWY_INLINE void dot(const float* query, const T* keys, std::int64_t padded, float* scores) {
  V16 sums[kCount];
#pragma GCC unroll 4
  for (int k = 0; k < kCount; ++k) sums[k] = set16(0.0f);
  for (std::int64_t i = 0; i < padded; i += 16) {
    const V16 q = load16(query + i);
#pragma GCC unroll 4
    for (int k = 0; k < kCount; ++k) sums[k] = multiply_add(q, load16(keys + k * padded + i), sums[k]);
  }
#pragma GCC unroll 4
  for (int k = 0; k < kCount; ++k) scores[k] = sum_lanes(sums[k]);
}

// sums [padded] += weights [count] values [count, padded], each element one chain over the places.
template <class T>
HWY_NOINLINE void add_values(const float* weights, std::int64_t count, const T* values, std::int64_t padded,
                             float* sums) {
  for (std::int64_t i = 0; i < padded; i += 16) {
    V16 sum = load16(sums + i);
    for (std::int64_t k = 0; k < count; ++k)
      sum = multiply_add(set16(weights[k]), load16(values + k * padded + i), sum);
    store16(sum, sums + i);
  }
}

template <class T>
HWY_INLINE void run_task(const CachedTask& task, float* workspace) {
  FloatParts parts(workspace);
  const std::int64_t queries = task.rows * task.group, padded = task.padded, kept = kept_floats(padded);
  float* const query = parts.take(queries * padded);
  float* const key_rows = parts.take(kTile * padded);
  float* const value_rows = parts.take(kTile * padded);
  alignas(64) float scores[kTile];
  const HeadShape head = {.channels = task.channels, .padded = padded};
  const V16 scale = set16(head.scale());
  const auto of_query = [&](std::int64_t row, std::int64_t k) {
    return task.partial + row * task.partial_stride + k * kept;
  };
  for (std::int64_t row = 0; row < task.rows; ++row)
    for (std::int64_t k = 0; k < task.group; ++k) {
      const T* from = static_cast<const T*>(task.queries) + row * task.row_numel + k * task.channels;
      float* const sums = of_query(row, k);
      for (std::int64_t i = 0; i < padded; i += 16) {
        store16(mul(load_some(from + i, task.channels - i), scale),
                query + (row * task.group + k) * padded + i);
        store16(set16(0.0f), sums + i);
      }
      sums[padded] = -std::numeric_limits<float>::infinity();
      sums[padded + 1] = 0.0f;
    }
  const auto see = [&](std::int64_t first, std::int64_t there, const auto* keys, const auto* values) {
    for (std::int64_t row = 0; row < task.rows; ++row) {
      const std::int64_t count = std::min(there, task.visible + row - first);
      if (count <= 0) continue;
      for (std::int64_t k = 0; k < task.group; ++k) {
        const float* const q = query + (row * task.group + k) * padded;
        float* const sums = of_query(row, k);
        std::int64_t key = 0;
        for (; key + 4 <= count; key += 4) dot<4>(q, keys + key * padded, padded, scores + key);
        for (; key < count; ++key) dot<1>(q, keys + key * padded, padded, scores + key);
        softmax_row(scores, 1.0f, count, head, sums[padded], sums[padded + 1], sums);
        add_values(scores, count, values, padded, sums);
      }
    }
  };
  // Few queries read rows where they lie; more have them made floats once.
  const bool in_place = padded == task.channels && queries < 4;
  const std::int64_t last = std::min(task.last, task.visible + task.rows - 1);
  for (std::int64_t first = task.first; first < last; first += kTile) {
    const std::int64_t there = std::min(kTile, last - first);
    const T* const keys = static_cast<const T*>(task.keys) + first * task.channels;
    const T* const values = static_cast<const T*>(task.values) + first * task.channels;
    if (in_place)
      see(first, there, keys, values);
    else
      see(first, there, static_cast<const float*>(float_rows(keys, there, task, key_rows)),
          static_cast<const float*>(float_rows(values, there, task, value_rows)));
  }
}

void cached_attention_task(DType type, const CachedTask& task, float* workspace) {
  if (type == DType::fp32) return run_task<float>(task, workspace);
  run_task<Bf16>(task, workspace);
}

// output [channels] = the blocks' weighted values over their sum. `stride`: floats from block to block.
template <class T>
HWY_INLINE void join(const float* partial, std::int64_t blocks, std::int64_t stride, std::int64_t channels,
                     std::int64_t padded, T* output) {
  alignas(64) float factor[16];
  float maximum = -std::numeric_limits<float>::infinity(), sum = 0.0f;
  for (std::int64_t b = 0; b < blocks; ++b) maximum = std::max(maximum, partial[b * stride + padded]);
  const auto factor_of = [&](std::int64_t b) {
    store16(exp16(set16(partial[b * stride + padded] - maximum)), factor);
    return factor[0];
  };
  for (std::int64_t b = 0; b < blocks; ++b) sum += factor_of(b) * partial[b * stride + padded + 1];
  for (std::int64_t i = 0; i < channels; i += 16) {
    V16 all = set16(0.0f);
    for (std::int64_t b = 0; b < blocks; ++b)
      all = multiply_add(set16(factor_of(b)), load16(partial + b * stride + i), all);
    store_some(mul(all, set16(1.0f / sum)), output + i, channels - i);
  }
}

void cached_attention_join(DType type, const float* partial, std::int64_t blocks, std::int64_t stride,
                           std::int64_t channels, std::int64_t padded, void* output) {
  if (type == DType::fp32)
    return join(partial, blocks, stride, channels, padded, static_cast<float*>(output));
  join(partial, blocks, stride, channels, padded, static_cast<Bf16*>(output));
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels::cpu {

HWY_EXPORT(cached_attention_task);
HWY_EXPORT(cached_attention_join);

namespace {

// How the rows are shared out, and where what tasks leave lies in the workspace: [block, batch, row, head],
// behind the threads' own parts.
struct Tasks {
  explicit Tasks(const CachedAttentionShape& s)
      : shape(s),
        group(s.heads / s.kv_heads_or_heads()),
        rows(std::clamp<std::int64_t>(kTile / group, 1, std::max<std::int64_t>(s.rows, 1))),
        row_tiles((s.rows + rows - 1) / rows),
        padded(round_up(s.head_channels(), 16)) {}

  std::int64_t heads_of() const { return shape.batch * shape.kv_heads_or_heads(); }
  std::int64_t kept_row() const { return shape.heads * kept_floats(padded); }
  std::int64_t kept_block() const { return shape.batch * shape.rows * kept_row(); }
  std::int64_t thread_bytes() const {
    return workspace_part_bytes((rows * group + 2 * kTile) * padded * bytes_of(DType::fp32));
  }
  std::int64_t workspace_bytes(int threads) const {
    return threads * thread_bytes() + workspace_part_bytes(shape.blocks() * kept_block() * 4);
  }

  const CachedAttentionShape& shape;
  const std::int64_t group, rows, row_tiles, padded;
};

// Copies the new rows' keys and values of one head of one batch item.
void put_rows(const CachedAttentionShape& s, const void* qkv, void* cache, std::int64_t head) {
  const std::int64_t kv_heads = s.kv_heads_or_heads(), channels = s.head_channels();
  const std::int64_t item = head / kv_heads, of_item = head % kv_heads;
  for (std::int64_t row = 0; row < s.rows; ++row)
    for (const std::int64_t of : {0, 1})
      std::memcpy(
          element(cache, s.type, of * s.keys_numel() + (head * s.capacity + s.position + row) * channels),
          element(
              qkv, s.type,
              (item * s.rows + row) * s.qkv_channels() + s.channels + (of * kv_heads + of_item) * channels),
          static_cast<std::size_t>(channels * bytes_of(s.type)));
}

}  // namespace

std::int64_t cached_attention_workspace_bytes(const CachedAttentionShape& shape, const Target& target) {
  return Tasks(shape).workspace_bytes(target.threads);
}

void cached_attention_forward(const ComputeContext& context, const CachedAttentionShape& s, const void* qkv,
                              void* cache, void* output) {
  if (s.batch * s.rows == 0) return;
  const Tasks tasks(s);
  const std::int64_t kv_heads = s.kv_heads_or_heads(), channels = s.head_channels();
  const int copying = s.rows * channels * tasks.heads_of() < kElementwiseGrain ? 1 : context.threads;
  parallel_ranges(copying, tasks.heads_of(), 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t head = begin; head < end; ++head) put_rows(s, qkv, cache, head);
  });
  auto* const partial = offset_bytes<float>(context.workspace.data, context.threads * tasks.thread_bytes());
  const std::int64_t blocks = s.visible_blocks();
  const auto run = [&](std::int64_t task, int thread) {
    const std::int64_t block = task / (tasks.heads_of() * tasks.row_tiles);
    const std::int64_t head = task / tasks.row_tiles % tasks.heads_of();
    const std::int64_t first_row = task % tasks.row_tiles * tasks.rows;
    const std::int64_t item = head / kv_heads, first_head = head % kv_heads * tasks.group;
    const CachedTask of = {
        .queries =
            element(qkv, s.type, (item * s.rows + first_row) * s.qkv_channels() + first_head * channels),
        .keys = element(cache, s.type, head * s.capacity * channels),
        .values = element(cache, s.type, s.keys_numel() + head * s.capacity * channels),
        .row_numel = s.qkv_channels(),
        .rows = std::min(tasks.rows, s.rows - first_row),
        .group = tasks.group,
        .channels = channels,
        .padded = tasks.padded,
        .first = block * s.block(),
        .last = std::min((block + 1) * s.block(), s.capacity),
        .visible = s.position + first_row + 1,
        .partial = partial + block * tasks.kept_block() + (item * s.rows + first_row) * tasks.kept_row() +
                   first_head * kept_floats(tasks.padded),
        .partial_stride = tasks.kept_row()};
    HWY_DYNAMIC_DISPATCH(cached_attention_task)
    (s.type, of, offset_bytes<float>(context.workspace.data, thread * tasks.thread_bytes()));
  };
  parallel_ranges(context.threads, blocks * tasks.heads_of() * tasks.row_tiles, 1,
                  [&](std::int64_t begin, std::int64_t end, int thread) {
                    for (std::int64_t task = begin; task < end; ++task) run(task, thread);
                  });
  const std::int64_t queries = s.batch * s.rows * s.heads;
  parallel_ranges(context.threads, queries, std::max<std::int64_t>(1, kElementwiseGrain / channels),
                  [&](std::int64_t begin, std::int64_t end, int) {
                    for (std::int64_t query = begin; query < end; ++query)
                      HWY_DYNAMIC_DISPATCH(cached_attention_join)
                    (s.type, partial + query * kept_floats(tasks.padded), blocks, tasks.kept_block(),
                     channels, tasks.padded, element(output, s.type, query * channels));
                  });
}

}  // namespace tessera::kernels::cpu
#endif  // HWY_ONCE
