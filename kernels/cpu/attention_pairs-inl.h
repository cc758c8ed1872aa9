// Attention in bf16 by the processor's matrix unit (matrix_unit.h). Scores are summed in fp32; weights and
// their gradients are rounded to bf16 when they go into a product. Processors with the unit also have
// AVX-512. Included once per target (Highway's foreach_target.h), hence no #pragma once.
#if defined(TESSERA_KERNELS_CPU_ATTENTION_PAIRS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_ATTENTION_PAIRS_INL_H
#undef TESSERA_KERNELS_CPU_ATTENTION_PAIRS_INL_H
#else
#define TESSERA_KERNELS_CPU_ATTENTION_PAIRS_INL_H
#endif

#include "kernels/cpu/attention_tiles-inl.h"
#include "kernels/cpu/matrix_unit.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE::pairs {

constexpr bool kAvailable = kParts == 1;  // a vector of 16 words

// out [kTile, padded] = rows of input, with zeros in rows and channels that do not exist.
static HWY_NOINLINE void copy_rows(const void* input, std::int64_t stride, std::int64_t rows,
                                   const HeadShape& wide, Bf16* out) {
  const auto bytes = static_cast<std::size_t>(wide.channels) * sizeof(Bf16);
  std::memset(static_cast<void*>(out), 0, static_cast<std::size_t>(wide.tile_numel()) * sizeof(Bf16));
  for (std::int64_t row = 0; row < rows; ++row)
    std::memcpy(out + row * wide.padded, static_cast<const Bf16*>(input) + row * stride, bytes);
}

// out [columns, rows] = words [rows, columns] transposed, where a word is a pair of bf16. If a word is a pair
// of channels, the result is the transposed matrix by pairs of rows. If it is a pair of rows, the result is
// the plain transposed matrix.
HWY_INLINE void transpose_pairs(const Bf16* words, std::int64_t rows, std::int64_t columns, Bf16* out) {
  transpose(reinterpret_cast<const std::uint32_t*>(words), columns, rows, columns,
            reinterpret_cast<std::uint32_t*>(out));
}

// out [kTile / 2][columns][2]: row 2i in the lower halves, row 2i + 1 in the upper ones.
HWY_INLINE void store_pair(IntVector lower, IntVector upper, Bf16* out) {
  const IntTag d;
  hn::StoreU(hn::Or(lower, hn::ShiftLeft<16>(upper)), d, reinterpret_cast<std::int32_t*>(out));
}
static HWY_NOINLINE void pair_rows(const Bf16* rows, std::int64_t columns, Bf16* out) {
  const auto* halves = reinterpret_cast<const std::uint16_t*>(rows);
  for (std::int64_t row = 0; row < kTile; row += 2)
    for (std::int64_t i = 0; i < columns; i += kVectorLanes)
      store_pair(load_halves(halves + row * columns + i), load_halves(halves + (row + 1) * columns + i),
                 out + row * columns + 2 * i);
}
static HWY_NOINLINE void round_to_pairs(const float* tile, Bf16* out) {
  const FloatTag d;
  for (std::int64_t row = 0; row < kTile; row += 2)
    for (std::int64_t i = 0; i < kTile; i += kVectorLanes)
      store_pair(bf16_bits(hn::LoadU(d, tile + row * kTile + i)),
                 bf16_bits(hn::LoadU(d, tile + (row + 1) * kTile + i)), out + row * kTile + 2 * i);
}
static HWY_NOINLINE void round_to_rows(const float* tile, Bf16* out) {
  for (std::int64_t i = 0; i < kTile * kTile; i += 16) store16(load16(tile + i), out + i);
}

static HWY_NOINLINE void forward_head(const HeadShape& narrow, const ForwardHead& a, float* workspace) {
  const HeadShape head = narrow.widened();
  const PairForwardWorkspace w(head, workspace);
  const std::int64_t stride = head.qkv_channels, numel = head.tile_numel();
  TileDraws draws = {head.dropout, a.item, a.head};
  for (std::int64_t tile = 0; tile < head.tiles(); ++tile) {
    const std::int64_t first = tile * kTile * stride;
    copy_rows(static_cast<const Bf16*>(a.key) + first, stride, head.rows_of(tile), head, w.query);
    transpose_pairs(w.query, kTile, head.padded / 2, w.keys_transposed + tile * numel);
    copy_rows(static_cast<const Bf16*>(a.value) + first, stride, head.rows_of(tile), head, w.query);
    pair_rows(w.query, head.padded, w.values + tile * numel);
  }
  const cpu::MatrixUnit unit;
  for (std::int64_t tile = 0; tile < head.tiles(); ++tile) {
    copy_rows(static_cast<const Bf16*>(a.query) + tile * kTile * stride, stride, head.rows_of(tile), head,
              w.query);
    std::memset(w.output, 0, static_cast<std::size_t>(numel) * sizeof(float));
    TileSums sums;
    sums.begin();
    for (std::int64_t keys = 0; keys <= tile; ++keys) {
      unit.multiply({kTile, kTile, head.padded}, w.query, w.keys_transposed + keys * numel, w.scores, false);
      sums.weigh(head, draws, tile, keys, head.scale(), w.scores, w.output);
      round_to_rows(w.scores, w.weights);
      unit.multiply({kTile, head.padded, kTile}, w.weights, w.values + keys * numel, w.output, true);
    }
    sums.finish<Bf16>(head, a, tile, w.output);
  }
}

// out = scale * the rows of the transpose of `gradient` [padded, kTile].
HWY_INLINE void unpack_turned(const PairBackwardWorkspace& w, const float* gradient, float scale,
                              std::int64_t rows, const HeadShape& head, void* out) {
  transpose(gradient, kTile, head.padded, kTile, w.turned);
  unpack(w.turned, scale, rows, head, static_cast<Bf16*>(out), head.qkv_channels);
}

// One query head of a group, like backward_head in attention.cpp. Gradients of keys and values are summed in
// transposed form. Then the scores are the product's right operand, and need not be transposed.
static HWY_NOINLINE void backward_head(const HeadShape& narrow, const BackwardHead& a, float* workspace) {
  const HeadShape head = narrow.widened();
  const PairBackwardWorkspace w(head, workspace);
  const std::int64_t stride = head.qkv_channels, numel = head.tile_numel();
  const auto tile_bytes = static_cast<std::size_t>(numel) * sizeof(float);
  TileDraws draws = {head.dropout, a.item, a.head};
  const auto prepare = [&](const void* from, std::int64_t row_stride, std::int64_t tile, Bf16* rows,
                           Bf16* transposed) {
    copy_rows(static_cast<const Bf16*>(from) + tile * kTile * row_stride, row_stride, head.rows_of(tile),
              head, rows + tile * numel);
    pair_rows(rows + tile * numel, head.padded, w.keys);
    transpose_pairs(w.keys, kTile / 2, head.padded, transposed + tile * numel);
  };
  for (std::int64_t tile = 0; tile < head.tiles(); ++tile) {
    prepare(a.query, stride, tile, w.queries, w.queries_transposed);
    prepare(a.output_gradient, head.model_channels, tile, w.output_gradients, w.gradients_transposed);
    std::memset(w.query_gradients + tile * numel, 0, tile_bytes);
    prepare_rows<Bf16>(head, a, tile, w.log_sum_exp + tile * kTile, w.delta + tile * kTile);
  }
  const cpu::MatrixUnit unit;
  for (std::int64_t keys = 0; keys < head.tiles(); ++keys) {
    const std::int64_t rows = head.rows_of(keys), first = keys * kTile * stride;
    const std::int64_t kept = head.group > 1 ? keys * numel : 0;
    float* key_gradient = w.key_gradients + kept;
    float* value_gradient = w.value_gradients + kept;
    copy_rows(static_cast<const Bf16*>(a.value) + first, stride, rows, head, w.rows);
    transpose_pairs(w.rows, kTile, head.padded / 2, w.values_transposed);
    copy_rows(static_cast<const Bf16*>(a.key) + first, stride, rows, head, w.rows);
    transpose_pairs(w.rows, kTile, head.padded / 2, w.keys_transposed);
    pair_rows(w.rows, head.padded, w.keys);
    if (a.first_of_group) {
      std::memset(key_gradient, 0, tile_bytes);
      std::memset(value_gradient, 0, tile_bytes);
    }
    for (std::int64_t tile = keys; tile < head.tiles(); ++tile) {
      unit.multiply({kTile, kTile, head.padded}, w.queries + tile * numel, w.keys_transposed, w.scores,
                    false);
      unit.multiply({kTile, kTile, head.padded}, w.output_gradients + tile * numel, w.values_transposed,
                    w.score_gradients, false);
      weights_and_gradients(w.log_sum_exp, w.delta, draws, tile, keys, head.scale(), w.scores,
                            w.score_gradients);
      round_to_pairs(w.scores, w.rounded);
      unit.multiply({head.padded, kTile, kTile}, w.gradients_transposed + tile * numel, w.rounded,
                    value_gradient, true);
      round_to_pairs(w.score_gradients, w.rounded);
      unit.multiply({head.padded, kTile, kTile}, w.queries_transposed + tile * numel, w.rounded, key_gradient,
                    true);
      round_to_rows(w.score_gradients, w.rounded);
      unit.multiply({kTile, head.padded, kTile}, w.rounded, w.keys, w.query_gradients + tile * numel, true);
    }
    if (!a.last_of_group) continue;
    unpack_turned(w, key_gradient, head.scale(), rows, head, static_cast<Bf16*>(a.key_gradient) + first);
    unpack_turned(w, value_gradient, 1.0f, rows, head, static_cast<Bf16*>(a.value_gradient) + first);
  }
  for (std::int64_t tile = 0; tile < head.tiles(); ++tile)
    unpack(w.query_gradients + tile * numel, head.scale(), head.rows_of(tile), head,
           static_cast<Bf16*>(a.query_gradient) + tile * kTile * stride, stride);
}

}  // namespace tessera::kernels::HWY_NAMESPACE::pairs
HWY_AFTER_NAMESPACE();

#endif  // include guard
