// The shape of one attention head or group of heads, and how one thread's workspace is divided into tiles.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/dropout.h"
#include "kernels/float_types.h"
#include "tessera/shape.h"

namespace tessera::kernels {

constexpr std::int64_t kTile = 64;  // queries, and keys, in a tile

struct HeadShape {
  std::int64_t sequence = 0;
  std::int64_t model_channels = 0;  // of all heads; elements from one row of the output to the next
  std::int64_t qkv_channels = 0;    // elements from one row of queries, keys or values to the next
  std::int64_t group = 1;           // query heads that share a key and value head
  std::int64_t channels = 0;        // of this head
  std::int64_t padded = 0;          // channels rounded up to whole groups of 16 lanes
  bool by_pairs = false;            // whether a matrix unit multiplies in bf16
  Dropout dropout = {};             // of all heads

  std::int64_t tiles() const { return (sequence + kTile - 1) / kTile; }
  std::int64_t rows_of(std::int64_t tile) const { return std::min(kTile, sequence - tile * kTile); }
  std::int64_t tile_numel() const { return kTile * padded; }
  // The same head with `padded` as a matrix unit needs it: channels rounded up to 32.
  HeadShape widened() const {
    HeadShape wide = *this;
    wide.padded = round_up(channels, 32);
    return wide;
  }
  float scale() const { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(channels))); }
};

// The first elements of one head's tensors. HeadShape gives the distances between rows.
struct ForwardHead {
  const void* query = nullptr;
  const void* key = nullptr;
  const void* value = nullptr;
  void* output = nullptr;
  float* log_sum_exp = nullptr;
  std::uint32_t item = 0, head = 0;  // index in the batch; index among all query heads
};

struct BackwardHead {
  const void* query = nullptr;
  const void* key = nullptr;
  const void* value = nullptr;
  const void* output = nullptr;
  const float* log_sum_exp = nullptr;
  const void* output_gradient = nullptr;
  void* query_gradient = nullptr;
  void* key_gradient = nullptr;
  void* value_gradient = nullptr;
  bool first_of_group = true;
  bool last_of_group = true;
  std::uint32_t item = 0, head = 0;
};

// Hands out consecutive parts of one thread's floats. With a null pointer it only counts them.
class FloatParts {
 public:
  explicit FloatParts(float* first) : first_(first) {}
  float* take(std::int64_t numel) {
    float* part = first_ == nullptr ? nullptr : first_ + taken_;
    taken_ += numel;
    return part;
  }
  Bf16* take_halves(std::int64_t numel) { return reinterpret_cast<Bf16*>(take(numel / 2)); }
  std::int64_t taken() const { return taken_; }

 private:
  float* first_;
  std::int64_t taken_ = 0;
};

// Workspace of forward: all keys and values of the head, and one tile of queries.
struct ForwardWorkspace {
  float* keys_transposed;  // [tiles][channels, kTile]
  float* values;           // [tiles][kTile, padded]
  float* query;            // [kTile, padded]
  float* output;           // [kTile, padded]
  float* scores;           // [kTile, kTile]
  std::int64_t taken;      // number of floats

  ForwardWorkspace(const HeadShape& head, float* workspace) {
    FloatParts parts(workspace);
    keys_transposed = parts.take(head.tiles() * head.channels * kTile);
    values = parts.take(head.tiles() * head.tile_numel());
    query = parts.take(head.tile_numel());
    output = parts.take(head.tile_numel());
    scores = parts.take(kTile * kTile);
    taken = parts.taken();
  }
  static std::int64_t numel(const HeadShape& head) { return ForwardWorkspace(head, nullptr).taken; }
};

// Workspace of backward: all queries of one head and their gradients, and one tile of keys and values. If
// query heads share keys and values, also the gradients of all keys and values, to which the heads add one
// after the other.
struct BackwardWorkspace {
  float* queries;            // [tiles][kTile, padded], scaled
  float* output_gradients;   // [tiles][kTile, padded]
  float* query_gradients;    // [tiles][kTile, padded]
  float* log_sum_exp;        // [tiles][kTile]
  float* delta;              // [tiles][kTile]
  float* keys;               // [kTile, padded]
  float* keys_transposed;    // [channels, kTile]
  float* values_transposed;  // [channels, kTile]
  float* key_gradients;      // [key_gradient_tiles][kTile, padded]
  float* value_gradients;    // [key_gradient_tiles][kTile, padded]
  float* scores;             // [kTile, kTile]
  float* score_gradients;    // [kTile, kTile]
  std::int64_t taken;        // number of floats

  BackwardWorkspace(const HeadShape& head, float* workspace) {
    FloatParts parts(workspace);
    queries = parts.take(head.tiles() * head.tile_numel());
    output_gradients = parts.take(head.tiles() * head.tile_numel());
    query_gradients = parts.take(head.tiles() * head.tile_numel());
    log_sum_exp = parts.take(head.tiles() * kTile);
    delta = parts.take(head.tiles() * kTile);
    keys = parts.take(head.tile_numel());
    keys_transposed = parts.take(head.channels * kTile);
    values_transposed = parts.take(head.channels * kTile);
    key_gradients = parts.take(key_gradient_tiles(head) * head.tile_numel());
    value_gradients = parts.take(key_gradient_tiles(head) * head.tile_numel());
    scores = parts.take(kTile * kTile);
    score_gradients = parts.take(kTile * kTile);
    taken = parts.taken();
  }
  static std::int64_t numel(const HeadShape& head) { return BackwardWorkspace(head, nullptr).taken; }
  static std::int64_t key_gradient_tiles(const HeadShape& head) { return head.group > 1 ? head.tiles() : 1; }
};

// The workspace of forward for a matrix unit. The right operand of a product is stored by pairs of rows,
// [rows / 2][columns][2]. `padded` below is that of the widened head.
struct PairForwardWorkspace {
  Bf16* keys_transposed;  // [tiles] by pairs of [padded, kTile]
  Bf16* values;           // [tiles] by pairs of [kTile, padded]
  Bf16* query;            // [kTile, padded]; at first, the rows that become keys and values
  Bf16* weights;          // [kTile, kTile]
  float* output;          // [kTile, padded]
  float* scores;          // [kTile, kTile]
  std::int64_t taken;     // number of floats

  PairForwardWorkspace(const HeadShape& wide, float* workspace) {
    FloatParts parts(workspace);
    keys_transposed = parts.take_halves(wide.tiles() * wide.tile_numel());
    values = parts.take_halves(wide.tiles() * wide.tile_numel());
    query = parts.take_halves(wide.tile_numel());
    weights = parts.take_halves(kTile * kTile);
    output = parts.take(wide.tile_numel());
    scores = parts.take(kTile * kTile);
    taken = parts.taken();
  }
  static std::int64_t numel(const HeadShape& head) {
    return PairForwardWorkspace(head.widened(), nullptr).taken;
  }
};

// The workspace of backward for a matrix unit. Data that are needed at different times share memory. So it
// takes no more than BackwardWorkspace if heads have a multiple of 32 channels.
struct PairBackwardWorkspace {
  Bf16* queries;               // [tiles][kTile, padded]
  Bf16* output_gradients;      // [tiles][kTile, padded]
  Bf16* queries_transposed;    // [tiles][padded, kTile]
  Bf16* gradients_transposed;  // [tiles][padded, kTile]
  float* query_gradients;      // [tiles][kTile, padded]
  float* log_sum_exp;          // [tiles][kTile]
  float* delta;                // [tiles][kTile]
  Bf16* keys;                  // by pairs of [kTile, padded]; at first, queries or gradients to transpose
  Bf16* keys_transposed;       // by pairs of [padded, kTile]
  Bf16* values_transposed;     // by pairs of [padded, kTile]
  float* key_gradients;        // [key_gradient_tiles][padded, kTile]
  float* value_gradients;      // [key_gradient_tiles][padded, kTile]
  float* scores;               // [kTile, kTile]
  float* score_gradients;      // [kTile, kTile]
  float* turned;               // [kTile, padded], a tile's key or value gradients transposed back
  Bf16* rows;          // in the same memory, earlier: [kTile, padded], keys or values as they are stored
  Bf16* rounded;       // in the same memory, in between: [kTile, kTile], weights or their gradients
  std::int64_t taken;  // number of floats

  PairBackwardWorkspace(const HeadShape& wide, float* workspace) {
    const std::int64_t tiles = wide.tiles(), tile = wide.tile_numel(), square = kTile * kTile;
    const std::int64_t key_tiles = BackwardWorkspace::key_gradient_tiles(wide);
    FloatParts parts(workspace);
    queries = parts.take_halves(tiles * tile);
    output_gradients = parts.take_halves(tiles * tile);
    queries_transposed = parts.take_halves(tiles * tile);
    gradients_transposed = parts.take_halves(tiles * tile);
    query_gradients = parts.take(tiles * tile);
    log_sum_exp = parts.take(tiles * kTile);
    delta = parts.take(tiles * kTile);
    keys = parts.take_halves(tile);
    keys_transposed = parts.take_halves(tile);
    values_transposed = parts.take_halves(tile);
    key_gradients = parts.take(key_tiles * tile);
    value_gradients = parts.take(key_tiles * tile);
    scores = parts.take(square);
    score_gradients = parts.take(square);
    turned = parts.take(tile);  // of 32 channels at least: room for half a square
    rows = reinterpret_cast<Bf16*>(turned);
    rounded = reinterpret_cast<Bf16*>(turned);
    taken = parts.taken();
  }
  static std::int64_t numel(const HeadShape& head) {
    return PairBackwardWorkspace(head.widened(), nullptr).taken;
  }
};

}  // namespace tessera::kernels
