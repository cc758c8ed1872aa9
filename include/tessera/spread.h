// Which elements of a flat each rank holds. All code that needs this arithmetic calls it here: builder,
// executor, states, checkpoints, initial values and the step's decision. Pure.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "tessera/mesh.h"

namespace tessera {

struct Flat;  // of tessera/layout.h

// A set of axes of the mesh.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ |= bit(axis);
  }
  constexpr bool contains(Axis axis) const { return (bits_ & bit(axis)) != 0; }
  constexpr bool contains(AxisSet other) const { return (bits_ & other.bits_) == other.bits_; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr AxisSet with(Axis axis) const { return AxisSet(bits_ | bit(axis)); }
  constexpr AxisSet without(Axis axis) const { return AxisSet(bits_ & ~bit(axis)); }
  constexpr AxisSet operator|(AxisSet other) const { return AxisSet(bits_ | other.bits_); }
  constexpr bool operator==(const AxisSet&) const = default;
  constexpr std::uint32_t bits() const { return bits_; }

 private:
  constexpr explicit AxisSet(std::uint32_t bits) : bits_(bits) {}
  static constexpr std::uint32_t bit(Axis axis) { return 1U << static_cast<unsigned>(axis); }
  std::uint32_t bits_ = 0;
};

// The smallest piece, which a cut never divides: an element, a block of `numel` elements (8-bit states), or a
// whole parameter (optimizers of matrices). This version supports elements only.
struct Granule {
  enum class Kind : std::uint8_t { element, block, parameter };
  Kind kind = Kind::element;
  std::int64_t numel = 1;
  bool operator==(const Granule&) const = default;
};

// The axes over which a flat is cut into equal parts, `shard` first, `replicate` inside it, and inside that
// `tensor`, where its ranks have copies of the flat (Flat::over). Ranks that differ only along other axes
// hold the same part. Without axes, every rank holds the whole flat.
//
//   {}                          |            all of the flat            |
//   {shard}                     |    shard 0     |       shard 1        |
//   {shard, replicate}          | slice 0| slice 1| slice 0 |  slice 1  |     of two replicas
//   {shard, replicate, tensor}  | 0 | 1  | 0 | 1  | 0  | 1  |  0  |  1  |     of two tensor ranks
struct Spread {
  AxisSet axes = {};
  Granule granule = {};
  bool operator==(const Spread&) const = default;
};

inline constexpr Spread kWhole = {};
inline constexpr Spread kShard = {.axes = {Axis::shard}};
inline constexpr Spread kSlice = {.axes = {Axis::shard, Axis::replicate}};
inline constexpr Spread kPiece = {.axes = {Axis::shard, Axis::replicate, Axis::tensor}};

// to_string() gives "all", "shard", "shard+replicate" or "shard+replicate+tensor". spread_of(), its inverse,
// throws UsageError for any other text.
std::string to_string(const Spread& spread);
Spread spread_of(const std::string& text);

// Elements [begin, end) of a flat.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t numel() const { return end - begin; }
  bool operator==(const ElementRange&) const = default;
};

// The intersection of both parts: cut over the axes of both. Its granule is elements.
constexpr Spread finer(const Spread& a, const Spread& b) { return {.axes = a.axes | b.axes}; }

// The number of elements in one rank's part. Throws UsageError unless the spread is kWhole, kShard, kSlice
// or, of a flat that tensor ranks have copies of, kPiece.
std::int64_t numel_of(const Flat& flat, const Spread& spread);
// The part of the rank with these coordinates.
ElementRange range_of(const Flat& flat, const Spread& spread, const Coordinates& place);
// The coordinates of a rank whose part has element `offset` of the flat; 0 along axes that are not in the
// spread.
Coordinates owner_of(const Flat& flat, const Spread& spread, std::int64_t offset);

}  // namespace tessera
