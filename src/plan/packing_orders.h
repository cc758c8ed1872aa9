// Orders in which pack() places its items. It places each item where it fits among those before it, so the
// order mostly decides the height. Named orders sort by keys that often work: the largest first, those that
// live longest first, and keys in between. Drawn orders sort by keys that a fixed random sequence chooses.
// Places nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "src/plan/conflicts.h"
#include "src/plan/packing.h"

namespace tessera {

// Every item once, by index; the first is placed first.
using PackingOrder = std::vector<std::size_t>;

// The properties of an item that orders sort by.
struct PackTraits {
  double bytes = 0;
  double first = 0;     // first position alive, as a fraction of all positions
  double last = 0;      // last position alive, likewise
  double lives = 0;     // number of lives
  double longest = 0;   // length of the longest life, in positions
  double duration = 0;  // length of all lives, in positions
  double rivals = 0;    // bytes of the items that conflict
  double load = 0;      // most bytes alive beside it, as a fraction of the peak
};

// SplitMix64 (Steele, Lea and Flood 2014): a fixed sequence, so that the search is the same every time.
class DrawSequence {
 public:
  std::size_t below(std::size_t n) {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return static_cast<std::size_t>((z ^ (z >> 31)) % n);
  }

 private:
  std::uint64_t state_ = 0;
};

class PackingOrders {
 public:
  // There must be at least one item, and all items must live and have bytes. `curve` is their live_curve().
  // The items and `conflicts` must outlive this object.
  PackingOrders(std::span<const PackItem> items, const std::vector<std::int64_t>& curve,
                const Conflicts& conflicts);

  // The next named order; nothing after the last. Orders that most often reach the bound come first.
  std::optional<PackingOrder> next_named();

  // An order whose keys are drawn from `draws`.
  PackingOrder drawn(DrawSequence& draws) const;

 private:
  void add_rivals();

  std::span<const PackItem> items_;
  const Conflicts& conflicts_;
  std::vector<PackTraits> traits_;  // by item
  double longest_;                  // the largest among them
  std::size_t next_ = 0;            // among the named orders
};

}  // namespace tessera
