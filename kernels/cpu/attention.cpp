// Each head of each batch item is one task: its rows of q, k and v are unpacked to fp32 and worked on in
// tiles of 64 queries by 64 keys that stay in the first cache levels. Probabilities are fp32 and exist for
// one tile at a time.
#include "kernels/attention.h"

#include <cmath>
#include <limits>
#include <string>

#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cpp"
#include "hwy/foreach_target.h"  // compiles what follows once per target
#include "kernels/cpu/tile_product-inl.h"
#include "kernels/cpu/v16-inl.h"

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

// output rows = scale * packed rows.
template <class T>
HWY_INLINE void unpack(const float* packed, float scale, std::int64_t rows, const HeadShape& head, T* output,
                       std::int64_t stride) {
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < head.channels; i += 16)
      store_some(mul(load16(packed + row * head.padded + i), set16(scale)), output + row * stride + i,
                 head.channels - i);
}

// transposed [channels, kTile] of packed [kTile, padded].
static HWY_NOINLINE void transpose(const float* packed, const HeadShape& head, float* transposed) {
  for (std::int64_t block = 0; block < kTile; block += 16)
    for (std::int64_t channel = 0; channel < head.channels; ++channel)
      for (std::int64_t row = block; row < block + 16; ++row)
        transposed[channel * kTile + row] = packed[row * head.padded + channel];
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

// One row of the running softmax: turns scores into weights, rescales what was summed before.
// `visible` keys of the tile count; the others get weight 0.
static HWY_NOINLINE void softmax_row(float* scores, std::int64_t visible, const HeadShape& head,
                                     float& maximum, float& sum, float* output) {
  for (std::int64_t key = visible; key < kTile; ++key) scores[key] = -std::numeric_limits<float>::infinity();
  V16 top = load16(scores);
  for (std::int64_t i = 16; i < kTile; i += 16) top = max(top, load16(scores + i));
  const float tile_maximum = max_lanes(top);
  const float new_maximum = tile_maximum > maximum ? tile_maximum : maximum;
  V16 tile_sum = set16(0.0f);
  for (std::int64_t i = 0; i < kTile; i += 16) {
    const V16 weight = exp16(sub(load16(scores + i), set16(new_maximum)));
    store16(weight, scores + i);
    tile_sum = add(tile_sum, weight);
  }
  if (new_maximum != maximum) {
    alignas(64) float factor[16];
    store16(exp16(set16(maximum - new_maximum)), factor);
    sum *= factor[0];
    for (std::int64_t i = 0; i < head.padded; i += 16)
      store16(mul(load16(output + i), set16(factor[0])), output + i);
    maximum = new_maximum;
  }
  sum += sum_lanes(tile_sum);
}

template <class T>
HWY_INLINE void forward_head(const HeadShape& head, const T* qkv, T* output, float* log_sum_exp,
                             float* workspace) {
  const ForwardWorkspace w(head, workspace);
  const std::int64_t stride = 3 * head.model_channels;
  const float scale = head.scale();
  for (std::int64_t tile = 0; tile < head.tiles(); ++tile) {
    const T* rows = qkv + tile * kTile * stride;
    pack(rows + head.model_channels, stride, head.rows_of(tile), head, 1.0f, w.query);
    transpose(w.query, head, w.keys_transposed + tile * head.channels * kTile);
    pack(rows + 2 * head.model_channels, stride, head.rows_of(tile), head, 1.0f,
         w.values + tile * head.tile_numel());
  }
  for (std::int64_t tile = 0; tile < head.tiles(); ++tile) {
    const std::int64_t rows = head.rows_of(tile);
    pack(qkv + tile * kTile * stride, stride, rows, head, scale, w.query);
    std::memset(w.output, 0, static_cast<std::size_t>(head.tile_numel()) * sizeof(float));
    alignas(64) float maximum[kTile], sum[kTile];
    for (std::int64_t row = 0; row < kTile; ++row) {
      maximum[row] = -std::numeric_limits<float>::infinity();
      sum[row] = 0.0f;
    }
    for (std::int64_t keys = 0; keys <= tile; ++keys) {
      const bool diagonal = keys == tile;
      tile_scores(w.query, w.keys_transposed + keys * head.channels * kTile, head, diagonal, w.scores);
      for (std::int64_t row = 0; row < kTile; ++row)
        softmax_row(w.scores + row * kTile, diagonal ? row + 1 : kTile, head, maximum[row], sum[row],
                    w.output + row * head.padded);
      add_weighted(w.scores, w.values + keys * head.tile_numel(), head, diagonal, w.output);
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t place = tile * kTile + row;
      unpack(w.output + row * head.padded, 1.0f / sum[row], 1, head, output + place * head.model_channels, 0);
      log_sum_exp[place] = static_cast<float>(maximum[row] + std::log(static_cast<double>(sum[row])));
    }
  }
}

// What backward needs of a tile of queries: q (scaled), the gradient of its output, and delta = gradient .
// output.
template <class T>
HWY_INLINE void prepare_queries(const HeadShape& head, const T* qkv, const T* output,
                                const float* log_sum_exp, const T* output_gradient, std::int64_t tile,
                                const BackwardWorkspace& w) {
  const std::int64_t rows = head.rows_of(tile);
  const std::int64_t first = tile * kTile;
  float* gradient = w.output_gradients + tile * head.tile_numel();
  pack(qkv + first * 3 * head.model_channels, 3 * head.model_channels, rows, head, head.scale(),
       w.queries + tile * head.tile_numel());
  pack(output_gradient + first * head.model_channels, head.model_channels, rows, head, 1.0f, gradient);
  std::memset(w.query_gradients + tile * head.tile_numel(), 0,
              static_cast<std::size_t>(head.tile_numel()) * sizeof(float));
  for (std::int64_t row = 0; row < kTile; ++row) {
    V16 sum = set16(0.0f);
    for (std::int64_t i = 0; row < rows && i < head.channels; i += 16)
      sum = multiply_add(load16(gradient + row * head.padded + i),
                         load_some(output + (first + row) * head.model_channels + i, head.channels - i), sum);
    w.delta[first + row] = sum_lanes(sum);
    // Rows past the end get weight exp(0 - infinity) = 0.
    w.log_sum_exp[first + row] =
        row < rows ? log_sum_exp[first + row] : std::numeric_limits<float>::infinity();
  }
}

// scores -> weights = exp(scores - log_sum_exp); gradients (of the weights) -> weights * (gradients - delta).
static HWY_NOINLINE void weights_and_gradients(const float* log_sum_exp, const float* delta, bool diagonal,
                                               float* scores, float* gradients) {
  for (std::int64_t row = 0; row < kTile; ++row) {
    float* weight = scores + row * kTile;
    float* gradient = gradients + row * kTile;
    if (diagonal)
      for (std::int64_t key = row + 1; key < kTile; ++key)
        weight[key] = -std::numeric_limits<float>::infinity();
    for (std::int64_t i = 0; i < kTile; i += 16) {
      const V16 p = exp16(sub(load16(weight + i), set16(log_sum_exp[row])));
      store16(p, weight + i);
      store16(mul(p, sub(load16(gradient + i), set16(delta[row]))), gradient + i);
    }
  }
}

template <class T>
HWY_INLINE void backward_head(const HeadShape& head, const T* qkv, const T* output, const float* log_sum_exp,
                              const T* output_gradient, T* qkv_gradient, float* workspace) {
  const BackwardWorkspace w(head, workspace);
  const std::int64_t stride = 3 * head.model_channels;
  for (std::int64_t tile = 0; tile < head.tiles(); ++tile)
    prepare_queries(head, qkv, output, log_sum_exp, output_gradient, tile, w);
  for (std::int64_t keys = 0; keys < head.tiles(); ++keys) {
    const std::int64_t rows = head.rows_of(keys);
    const T* key_rows = qkv + keys * kTile * stride + head.model_channels;
    pack(key_rows + head.model_channels, stride, rows, head, 1.0f, w.keys);
    transpose(w.keys, head, w.values_transposed);
    pack(key_rows, stride, rows, head, 1.0f, w.keys);
    transpose(w.keys, head, w.keys_transposed);
    std::memset(w.key_gradient, 0, static_cast<std::size_t>(head.tile_numel()) * sizeof(float));
    std::memset(w.value_gradient, 0, static_cast<std::size_t>(head.tile_numel()) * sizeof(float));
    for (std::int64_t tile = keys; tile < head.tiles(); ++tile) {
      const bool diagonal = tile == keys;
      const float* query = w.queries + tile * head.tile_numel();
      const float* gradient = w.output_gradients + tile * head.tile_numel();
      tile_scores(query, w.keys_transposed, head, diagonal, w.scores);
      tile_scores(gradient, w.values_transposed, head, diagonal, w.score_gradients);
      weights_and_gradients(w.log_sum_exp + tile * kTile, w.delta + tile * kTile, diagonal, w.scores,
                            w.score_gradients);
      add_weighted_transposed(w.scores, gradient, head, diagonal, w.value_gradient);
      add_weighted_transposed(w.score_gradients, query, head, diagonal, w.key_gradient);
      add_weighted(w.score_gradients, w.keys, head, diagonal, w.query_gradients + tile * head.tile_numel());
    }
    T* key_output = qkv_gradient + keys * kTile * stride + head.model_channels;
    unpack(w.key_gradient, 1.0f, rows, head, key_output, stride);  // q is scaled already
    unpack(w.value_gradient, 1.0f, rows, head, key_output + head.model_channels, stride);
  }
  for (std::int64_t tile = 0; tile < head.tiles(); ++tile)
    unpack(w.query_gradients + tile * head.tile_numel(), head.scale(), head.rows_of(tile), head,
           qkv_gradient + tile * kTile * stride, stride);
}

void attention_forward_head(DType type, const HeadShape& head, const void* qkv, void* output,
                            float* log_sum_exp, float* workspace) {
  if (type == DType::fp32)
    forward_head(head, static_cast<const float*>(qkv), static_cast<float*>(output), log_sum_exp, workspace);
  else
    forward_head(head, static_cast<const Bf16*>(qkv), static_cast<Bf16*>(output), log_sum_exp, workspace);
}

void attention_backward_head(DType type, const HeadShape& head, const AttentionBackward& a,
                             float* workspace) {
  if (type == DType::fp32)
    backward_head(head, static_cast<const float*>(a.qkv), static_cast<const float*>(a.output), a.log_sum_exp,
                  static_cast<const float*>(a.output_gradient), static_cast<float*>(a.qkv_gradient),
                  workspace);
  else
    backward_head(head, static_cast<const Bf16*>(a.qkv), static_cast<const Bf16*>(a.output), a.log_sum_exp,
                  static_cast<const Bf16*>(a.output_gradient), static_cast<Bf16*>(a.qkv_gradient), workspace);
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(attention_forward_head);
HWY_EXPORT(attention_backward_head);

namespace {

HeadShape head_of(const AttentionShape& shape) {
  check_compute_type(shape.type, "attention");
  if (shape.heads < 1 || shape.channels % shape.heads != 0)
    throw UsageError("attention: " + std::to_string(shape.channels) + " channels cannot be split over " +
                     std::to_string(shape.heads) + " heads; channels must be a multiple of heads");
  const std::int64_t channels = shape.channels / shape.heads;
  return {.sequence = shape.sequence,
          .model_channels = shape.channels,
          .channels = channels,
          .padded = round_up(channels, 16)};
}

// Calls function(first element of the head's queries in qkv, of its output, of its rows in log_sum_exp,
// thread).
template <class Function>
void for_each_head(const ComputeContext& context, const AttentionShape& shape, Function&& function) {
  parallel_ranges(context.threads, shape.batch * shape.heads, 1,
                  [&](std::int64_t begin, std::int64_t end, int thread) {
                    for (std::int64_t task = begin; task < end; ++task) {
                      const std::int64_t row = task / shape.heads * shape.sequence;
                      const std::int64_t channel = task % shape.heads * (shape.channels / shape.heads);
                      function(row * 3 * shape.channels + channel, row * shape.channels + channel,
                               task * shape.sequence, thread);
                    }
                  });
}

}  // namespace

std::int64_t attention_forward_workspace_bytes(const AttentionShape& shape, int threads) {
  return threads * workspace_part_bytes(ForwardWorkspace::numel(head_of(shape)) * 4);
}

void attention_forward(const ComputeContext& context, const AttentionShape& shape, const void* qkv,
                       void* output, float* log_sum_exp) {
  const HeadShape head = head_of(shape);
  check_workspace(context, attention_forward_workspace_bytes(shape, context.threads), "attention_forward");
  const std::int64_t part_bytes = workspace_part_bytes(ForwardWorkspace::numel(head) * 4);
  for_each_head(context, shape, [&](std::int64_t query, std::int64_t out, std::int64_t row, int thread) {
    HWY_DYNAMIC_DISPATCH(attention_forward_head)
    (shape.type, head, element(qkv, shape.type, query), element(output, shape.type, out), log_sum_exp + row,
     offset_bytes<float>(context.workspace.data, thread * part_bytes));
  });
}

std::int64_t attention_backward_workspace_bytes(const AttentionShape& shape, int threads) {
  return threads * workspace_part_bytes(BackwardWorkspace::numel(head_of(shape)) * 4);
}

void attention_backward(const ComputeContext& context, const AttentionShape& shape,
                        const AttentionBackward& arguments) {
  const HeadShape head = head_of(shape);
  check_workspace(context, attention_backward_workspace_bytes(shape, context.threads), "attention_backward");
  const std::int64_t part_bytes = workspace_part_bytes(BackwardWorkspace::numel(head) * 4);
  for_each_head(context, shape, [&](std::int64_t query, std::int64_t out, std::int64_t row, int thread) {
    const AttentionBackward of_head = {.qkv = element(arguments.qkv, shape.type, query),
                                       .output = element(arguments.output, shape.type, out),
                                       .log_sum_exp = arguments.log_sum_exp + row,
                                       .output_gradient = element(arguments.output_gradient, shape.type, out),
                                       .qkv_gradient = element(arguments.qkv_gradient, shape.type, query)};
    HWY_DYNAMIC_DISPATCH(attention_backward_head)
    (shape.type, head, of_head, offset_bytes<float>(context.workspace.data, thread * part_bytes));
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
