// The parts of attention that work on tiles of scores, for any way to compute the products. Included once per
// target (Highway's foreach_target.h), hence no #pragma once.
#if defined(TESSERA_KERNELS_CPU_ATTENTION_TILES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_ATTENTION_TILES_INL_H
#undef TESSERA_KERNELS_CPU_ATTENTION_TILES_INL_H
#else
#define TESSERA_KERNELS_CPU_ATTENTION_TILES_INL_H
#endif

#include <cmath>
#include <limits>

#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/dropout-inl.h"
#include "kernels/cpu/tile_product-inl.h"
#include "kernels/cpu/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// output rows = scale * packed rows.
template <class T>
HWY_INLINE void unpack(const float* packed, float scale, std::int64_t rows, const HeadShape& head, T* output,
                       std::int64_t stride) {
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < head.channels; i += 16)
      store_some(mul(load16(packed + row * head.padded + i), set16(scale)), output + row * stride + i,
                 head.channels - i);
}

// out [columns, rows] = the transpose of words [rows, columns], whose rows are `stride` words apart. `rows`
// is a multiple of 16.
template <class Word>
HWY_NOINLINE void transpose(const Word* words, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                            Word* out) {
  for (std::int64_t block = 0; block < rows; block += 16)
    for (std::int64_t column = 0; column < columns; ++column)
      for (std::int64_t row = block; row < block + 16; ++row)
        std::memcpy(out + column * rows + row, words + row * stride + column, sizeof(Word));
}

// Applies dropout to one head's probabilities, tile by tile.
struct TileDraws {
  const Dropout& dropout;
  std::uint32_t item, head;
  alignas(64) std::uint16_t halves[kTile * kTile] = {};  // the random bits of one tile

  bool any() const { return dropout.threshold > 0; }

  HWY_NOINLINE void draw(std::int64_t query_tile, std::int64_t key_tile) {
    for (std::int64_t row = 0; row < kTile; row += 2)
      draw_halves<2>(dropout, {item, head, static_cast<std::uint32_t>(query_tile * kTile + row)},
                     static_cast<std::uint32_t>(key_tile * kTile / 8), halves + row * kTile);
  }

  // Multiplies kept elements of the tile by `factor`, and sets the others to 0.
  HWY_NOINLINE void drop(float factor, float* tile) const {
    for (std::int64_t i = 0; i < kTile * kTile; i += 16)
      store16(keep16(mul(load16(tile + i), set16(factor)), halves + i, dropout.threshold), tile + i);
  }
};

// Hides all keys of a row of scores but the first `visible`. Returns `visible` rounded up to whole vectors:
// hidden keys before that get the score -infinity, and those from there on get the weight 0 already.
HWY_INLINE std::int64_t hide_keys(float* scores, std::int64_t visible) {
  const std::int64_t end = round_up(visible, 16);
  for (std::int64_t key = visible; key < end; ++key) scores[key] = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = end; i < kTile; i += 16) store16(set16(0.0f), scores + i);
  return end;
}

// One row of the running softmax. Turns scores, which are not yet multiplied by `scale`, into weights, and
// rescales the sums so far. The first `visible` keys of the tile count; the others get weight 0.
static HWY_NOINLINE void softmax_row(float* scores, float scale, std::int64_t visible, const HeadShape& head,
                                     float& maximum, float& sum, float* output) {
  const std::int64_t end = hide_keys(scores, visible);
  V16 top = load16(scores);
  for (std::int64_t i = 16; i < end; i += 16) top = max(top, load16(scores + i));
  const float tile_maximum = max_lanes(top) * scale;
  const float new_maximum = tile_maximum > maximum ? tile_maximum : maximum;
  V16 tile_sum = set16(0.0f);
  for (std::int64_t i = 0; i < end; i += 16) {
    const V16 weight = exp16(fma(load16(scores + i), set16(scale), set16(-new_maximum)));
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

// The running maximum and sum for each query of a tile. `output` [kTile, padded] holds the weighted sums of
// values.
struct TileSums {
  alignas(64) float maximum[kTile], sum[kTile];

  HWY_INLINE void begin() {
    for (std::int64_t row = 0; row < kTile; ++row) {
      maximum[row] = -std::numeric_limits<float>::infinity();
      sum[row] = 0.0f;
    }
  }

  // Turns the scores of a tile of queries and a tile of keys, times `scale`, into weights, and adds all of
  // them to the sums. Then applies dropout to the weights.
  HWY_INLINE void weigh(const HeadShape& head, TileDraws& draws, std::int64_t tile, std::int64_t keys,
                        float scale, float* scores, float* output) {
    for (std::int64_t row = 0; row < kTile; ++row)
      softmax_row(scores + row * kTile, scale, keys == tile ? row + 1 : kTile, head, maximum[row], sum[row],
                  output + row * head.padded);
    if (!draws.any()) return;
    draws.draw(tile, keys);
    draws.drop(1.0f, scores);
  }

  template <class T>
  HWY_INLINE void finish(const HeadShape& head, const ForwardHead& a, std::int64_t tile,
                         const float* output) const {
    for (std::int64_t row = 0; row < head.rows_of(tile); ++row) {
      const std::int64_t place = tile * kTile + row;
      unpack(output + row * head.padded, 1.0f / sum[row] * head.dropout.scale(), 1, head,
             static_cast<T*>(a.output) + place * head.model_channels, 0);
      a.log_sum_exp[place] = static_cast<float>(maximum[row] + std::log(static_cast<double>(sum[row])));
    }
  }
};

// Sets log_sum_exp and delta = gradient . output, [kTile] each, for a tile of queries.
template <class T>
HWY_INLINE void prepare_rows(const HeadShape& head, const BackwardHead& a, std::int64_t tile,
                             float* log_sum_exp, float* delta) {
  const std::int64_t first = tile * kTile;
  for (std::int64_t row = 0; row < kTile; ++row) {
    const bool there = row < head.rows_of(tile);
    const std::int64_t place = (first + row) * head.model_channels;
    V16 sum = set16(0.0f);
    for (std::int64_t i = 0; there && i < head.channels; i += 16)
      sum = multiply_add(load_some(static_cast<const T*>(a.output_gradient) + place + i, head.channels - i),
                         load_some(static_cast<const T*>(a.output) + place + i, head.channels - i), sum);
    delta[row] = sum_lanes(sum);
    // Rows past the end get weight exp(0 - infinity) = 0.
    log_sum_exp[row] = there ? a.log_sum_exp[first + row] : std::numeric_limits<float>::infinity();
  }
}

// scores -> weights = exp(scale * scores - log_sum_exp); gradients (of the weights) -> weights * (gradients -
// delta).
static HWY_NOINLINE void weights_of_all(const float* log_sum_exp, const float* delta, bool diagonal,
                                        float scale, float* scores, float* gradients) {
  for (std::int64_t row = 0; row < kTile; ++row) {
    float* weight = scores + row * kTile;
    float* gradient = gradients + row * kTile;
    const std::int64_t end = hide_keys(weight, diagonal ? row + 1 : kTile);
    for (std::int64_t i = 0; i < end; i += 16) {
      const V16 p = exp16(fma(load16(weight + i), set16(scale), set16(-log_sum_exp[row])));
      store16(p, weight + i);
      store16(mul(p, sub(load16(gradient + i), set16(delta[row]))), gradient + i);
    }
    for (std::int64_t i = end; i < kTile; i += 16) store16(set16(0.0f), gradient + i);
  }
}

// The same with forward's dropout. log_sum_exp and delta are those of all tiles.
HWY_INLINE void weights_and_gradients(const float* log_sum_exp, const float* delta, TileDraws& draws,
                                      std::int64_t tile, std::int64_t keys, float scale, float* scores,
                                      float* gradients) {
  if (draws.any()) {
    draws.draw(tile, keys);
    draws.drop(draws.dropout.scale(), gradients);
  }
  weights_of_all(log_sum_exp + tile * kTile, delta + tile * kTile, tile == keys, scale, scores, gradients);
  if (draws.any()) draws.drop(draws.dropout.scale(), scores);
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
