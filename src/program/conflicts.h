// Which items of a packing are alive together, and what that says about the least height. Places nothing.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/program/packing.h"

namespace tessera {

// The start or end of a life.
struct LifeEvent {
  InstructionId position;
  bool end;
  std::size_t item;
};

// In order of position; starts come before ends, as ends are included.
std::vector<LifeEvent> events_of(std::span<const PackItem> items);

// Live bytes at each position up to the last event.
std::vector<std::int64_t> live_curve(std::span<const PackItem> items, std::span<const LifeEvent> events);

// A set of items.
using ItemSet = std::vector<std::uint64_t>;

// Which items may not share addresses: a symmetric relation, as a matrix of bits.
class Conflicts {
 public:
  Conflicts(std::size_t items, std::span<const LifeEvent> events);

  bool test(std::size_t a, std::size_t b) const {
    return ((bits_[a * words_ + b / 64] >> (b % 64)) & 1) != 0;
  }
  // The items that conflict with `item`.
  std::span<const std::uint64_t> row(std::size_t item) const { return {&bits_[item * words_], words_}; }

 private:
  void mirror(std::size_t items, std::size_t below, std::size_t beside);

  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

// The most bytes found in any set of items that all conflict with each other: at one address per item, no
// packing is lower. Starts from sets that live together, so it is at least the largest of them; items with
// several lives can form heavier sets that never live at one position.
std::int64_t heaviest_clique(std::span<const PackItem> items, std::span<const LifeEvent> events,
                             const Conflicts& conflicts);

template <typename Visit>
void for_each(std::span<const std::uint64_t> set, Visit visit) {
  for (std::size_t word = 0; word < set.size(); ++word) {
    for (std::uint64_t rest = set[word]; rest != 0; rest &= rest - 1) {
      visit(word * 64 + static_cast<std::size_t>(std::countr_zero(rest)));
    }
  }
}

}  // namespace tessera
